"""CAP from end to end on a tiny CLIP: presets, given labels, kills, and what it says when it cannot go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
from ranks import NAMES
from toys import write_classes

import captune
from captune.core.errors import CaptuneError, InputError, RunFolderError
from captune.core.runtime import EARLIER
from captune.labeling.pseudo_labels import PseudoLabels
from captune.labeling.selection import first_labels
from captune.methods.cap import Cap
from captune.results.run import Run

SHORT = {**ranks.SHORT, "train_batch": 4}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("photos"), NAMES, 6)


def adapt(photos: Path, clip: Path, preset: str, **changes: Any) -> Run:
    return ranks.adapt(photos, f"hf:{clip}", preset, **{**SHORT, **changes})


def bits(run: Run) -> bytes:
    tensors = run.classifier.tuner.state_dict()
    return b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))


@pytest.mark.parametrize("preset", ["quick", "full"])
@pytest.mark.parametrize("changes", [{}, {"margin": False, "concept_alignment": False}])
def test_it_trains_the_student_the_preset_names(
    photos: Path, clip_folder: Path, preset: str, changes: dict[str, Any]
) -> None:
    run = adapt(photos, clip_folder, preset, tau=0.3, **changes)
    assert run.settings["tuner"] == {"quick": "feature_adapter", "full": "maple"}[preset]
    epochs = [facts for facts in run.rounds if facts["step"] == "epoch"]
    assert [facts["epoch"] for facts in epochs] == [1, 2, 3, 4]
    assert all(np.isfinite(facts["loss"]) for facts in epochs)
    assert sum(epochs[-1]["pseudo_labeled"]) >= sum(epochs[0]["pseudo_labeled"])
    assert epochs[0]["largest_margin"] == 0.0  # the first epoch only warms up
    if not changes.get("margin", True):
        assert epochs[-1]["largest_margin"] == 0.0


def test_the_counts_of_the_margin_are_a_setting(photos: Path, clip_folder: Path) -> None:
    """Counted on D_PL or on accepted images, with the paper's growth: two different margins, two students."""
    runs = [
        adapt(photos, clip_folder, "quick", tau=0.3, start_from="zero_shot", count_on=count_on)
        for count_on in ("pseudo_labeled", "accepted")
    ]
    assert bits(runs[0]) != bits(runs[1])


def test_pseudo_labels_grow_every_few_epochs(photos: Path, clip_folder: Path) -> None:
    short = {"epochs": 8, "iterations": 1, "grow_every": 3}
    run = adapt(photos, clip_folder, "quick", start_from="zero_shot", **short)
    assert run.evidence is not None
    assert [epoch for epoch, _ in run.evidence.history] == [3, 6, 8]


def test_described_classes_rank_by_probability_if_all_are_described(
    photos: Path, clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "descriptions.yaml"
    file.write_text("".join(f"{name}:\n  - the {name} in a field\n" for name in NAMES))
    rankings: list[str] = []

    def spy(*values: Any, **named: Any) -> PseudoLabels:
        rankings.append(named["rank_described_by"])
        return first_labels(*values, **named)

    monkeypatch.setattr("captune.methods.cap.first_labels", spy)
    for describe in ("mismatched", "all"):
        short = {"describe": describe, "start_from": "zero_shot", "epochs": 1, "iterations": 1}
        adapt(photos, clip_folder, "quick", describer=f"file:{file}", **short)
    assert rankings == ["cosine", "probability"]


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_a_seed_is_a_result(photos: Path, clip_folder: Path, preset: str) -> None:
    first, again, other = (adapt(photos, clip_folder, preset, seed=seed) for seed in (3, 3, 4))
    assert bits(first) == bits(again)
    assert bits(first) != bits(other)


def test_shared_adapters_are_one(photos: Path, clip_folder: Path) -> None:
    apart, shared = (adapt(photos, clip_folder, "quick", independent_adapters=flag, tau=0.1) for flag in (True, False))
    assert bits(apart) != bits(shared)


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_given_labels_for_all_classes(photos: Path, clip_folder: Path, tmp_path: Path, preset: str) -> None:
    table = tmp_path / "labels.csv"
    rows = [f"{photos / name / f'{i:03d}.png'},{name}" for name in NAMES for i in range(2)]
    table.write_text("path,label\n" + "\n".join(rows))
    run = adapt(photos, clip_folder, preset, labels=table)
    assert run.predictions.probabilities.shape == (18, 3)


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_complete_classes_leave_pseudo_labels_to_the_others(
    photos: Path, clip_folder: Path, tmp_path: Path, preset: str
) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n" + "\n".join(f"{photos / 'cat' / f'{i:03d}.png'},cat" for i in range(6)))
    run = adapt(photos, clip_folder, preset, labels=table, tau=0.1, target_classes="auto")
    epochs = [facts for facts in run.rounds if facts["step"] == "epoch"]
    assert all(facts["pseudo_labeled"][0] == 0 and facts["accepted"][0] == 0 for facts in epochs)
    assert sum(epochs[-1]["accepted"]) > 0
    open_run = adapt(photos, clip_folder, "quick", labels=table, tau=0.1)
    assert bits(open_run) != bits(run)


def test_quick_gives_no_class_images_that_belong_to_another(photos: Path, clip_folder: Path) -> None:
    run = adapt(photos, clip_folder, "quick", k=6)
    assert run.evidence is not None
    first = run.evidence.history[0][1]
    texts = captune.adapt(
        photos, NAMES, backbone=f"hf:{clip_folder}", method="transductive", quiet=True, workers=0, keep_better=False
    )
    predicted = {texts.images.name(i): int(label) for i, label in enumerate(texts.predictions.labels)}
    assert len(first) > 0
    assert first.labels.tolist() == [predicted[run.readable.name(int(i))] for i in first.image_index]


def test_descriptions_stand_for_misleading_names(photos: Path, clip_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "descriptions.yaml"
    file.write_text("".join(f"{name}:\n  - the {name} in a field\n  - a striped tree\n" for name in NAMES))
    run = adapt(photos, clip_folder, "quick", describer=f"file:{file}", describe="all")
    assert set(run.classifier.vocabulary.descriptions) == {0, 1, 2}
    alignment = next(facts for facts in run.rounds if facts["step"] == "concept_alignment")
    assert set(alignment["descriptions"]) == set(NAMES)


@pytest.mark.parametrize("preset", ["quick", pytest.param("full", marks=pytest.mark.slow)])
def test_a_killed_run_resumes_to_the_same_bits(photos: Path, clip_folder: Path, tmp_path: Path, preset: str) -> None:
    changes: dict[str, Any] = {"epochs": 6, "tau": 0.3, "cache": str(tmp_path / "cache")}
    whole = adapt(photos, clip_folder, preset, **changes)
    out = tmp_path / "run"
    common = {
        "backbone": f"hf:{clip_folder}",
        "method": "cap",
        "preset": preset,
        "workers": 0,
        "quiet": True,
        "keep_better": False,
    }
    settings = {**common, **SHORT, **changes, "out": str(out)}
    words = f"import captune; captune.adapt({str(photos)!r}, {NAMES!r}, **{settings!r})"
    process = subprocess.Popen([sys.executable, "-c", words], env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while not list((out / "checkpoints").glob("*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not (out / "run.json").exists():  # it may have been faster than the kill
        with pytest.raises(RunFolderError, match="resume=True"):
            adapt(photos, clip_folder, preset, **changes, out=out)
        resumed = adapt(photos, clip_folder, preset, **changes, out=out, resume=True)
        assert bits(resumed) == bits(whole)
        times = resumed.environment
        assert times["seconds"] > times["seconds_of_steps"][EARLIER] > 0
        assert [f.get("epoch") for f in resumed.rounds] == [f.get("epoch") for f in whole.rounds]
    assert captune.load(out).predict_proba(whole.images.paths).argmax(1).tolist() == whole.predictions.labels.tolist()
    assert not (out / "checkpoints").exists()
    with pytest.raises(RunFolderError, match="finished"):
        adapt(photos, clip_folder, preset, **changes, out=out, resume=True)


def test_resuming_with_other_settings_is_refused(photos: Path, clip_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cap, "adapt", _adapt_then_stop(Cap.adapt))
        with pytest.raises(KeyboardInterrupt):
            adapt(photos, clip_folder, "quick", out=out)
    with pytest.raises(RunFolderError, match="settings"):
        adapt(photos, clip_folder, "quick", out=out, resume=True, tau=0.5)
    assert bits(adapt(photos, clip_folder, "quick", out=out, resume=True)) == bits(adapt(photos, clip_folder, "quick"))


def _adapt_then_stop(adapt_for_real: Any) -> Any:
    def stopped(*arguments: Any) -> None:
        adapt_for_real(*arguments)
        raise KeyboardInterrupt

    return stopped


def test_a_diverging_run_says_what_to_do(photos: Path, clip_folder: Path) -> None:
    with pytest.raises(CaptuneError, match=r"(?s)diverged.*learning_rate"):
        adapt(photos, clip_folder, "quick", learning_rate=1e30, warmup_epochs=0)


def test_wrong_names_are_told_before_weights_load(photos: Path, clip_folder: Path) -> None:
    with pytest.raises(InputError, match=r"'mapel'.*'maple'"):
        adapt(photos, clip_folder, "full", tuner="mapel")


def test_the_run_folder_tells_the_story(photos: Path, clip_folder: Path, tmp_path: Path) -> None:
    adapt(photos, clip_folder, "quick", out=tmp_path / "run")
    card = json.loads((tmp_path / "run" / "run.json").read_text())
    assert card["settings"]["preset"] == "quick"
    assert card["settings"]["tuner"] == "feature_adapter"
    assert [facts["step"] for facts in card["rounds"]] == ["concept_alignment"] + ["epoch"] * 4 + ["mixture"]
