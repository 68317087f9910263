"""What a run keeps for its report, and that a report that fails costs nothing else."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import tiny_clip
from safetensors.numpy import load_file
from toys import write_images

import captune
from captune.labeling.pseudo_labels import PseudoLabels
from captune.results import finishing
from captune.results.finishing import changes_of
from captune.results.run import Run
from captune.results.run_folder import EVIDENCE, PSEUDO_LABELS

CAP = {"preset": "quick", "epochs": 3, "iterations": 2, "grow_every": 1, "k": 2, "train_batch": 4, "strong_views": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evidence")
    tiny_clip(folder / "clip")
    write_images(folder / "photos", 12)
    (folder / "photos" / "002.png").write_bytes(b"")
    return folder


def adapt(base: Path, out: str, **settings: Any) -> Path:
    more = {
        "backbone": f"hf:{base / 'clip'}",
        "workers": 0,
        "cache": str(base / "cache"),
        "quiet": True,
        "keep_better": False,
    }
    captune.adapt(base / "photos", ["cat", "dog", "bird"], out=base / out, **more, **settings)
    return base / out


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_an_adapted_run_keeps_before_after_and_what_lay_between(base: Path) -> None:
    folder = adapt(base, "cap", method="cap", **CAP)
    kept = load_file(folder / EVIDENCE)
    assert kept["before"].shape == kept["after"].shape == (11, 3)
    run = Run.read(folder)
    assert run.is_adapted
    assert run.card["health"]["verdict"] == "unclear"  # too few images to judge
    assert run.alignment["concentration"].keys() == {"cat", "dog", "bird"}
    assert (kept["after"].argmax(axis=1) == run.labels).all()
    assert "002.png" not in {row["path"] for row in rows(folder / PSEUDO_LABELS)}
    assert (folder / "report.html").is_file()


def test_zero_shot_has_one_state_and_no_pseudo_labels(base: Path) -> None:
    folder = adapt(base, "zero", method="zero_shot")
    run = Run.read(folder)
    assert not run.is_adapted
    assert run.card["health"] is None
    assert not (folder / PSEUDO_LABELS).exists()
    assert run.pseudo_labels is None
    assert (folder / "report.html").is_file()


def test_of_many_images_a_sample_is_kept(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "MOST_PROBABILITIES", 12)
    monkeypatch.setattr(finishing, "MOST_EMBEDDINGS", 3)
    kept = load_file(adapt(base, "sampled", method="zero_shot") / EVIDENCE)
    assert (len(kept["rows"]), len(kept["embedded_rows"])) == (4, 3)
    assert (np.diff(kept["rows"]) > 0).all()
    assert set(kept["embedded_rows"]) <= set(kept["rows"]) <= set(range(11))
    assert kept["before_labels"].shape == (11,)


def test_a_report_that_fails_is_told_and_the_run_is_saved(
    base: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(folders: object) -> Path:
        raise RuntimeError("no ink")

    monkeypatch.setattr("captune.report.page.write_report", fail)
    folder = base / "inkless"
    captune.adapt(
        base / "photos",
        ["cat", "dog"],
        method="zero_shot",
        out=folder,
        backbone=f"hf:{base / 'clip'}",
        workers=0,
        cache=str(base / "cache"),
    )
    assert (folder / "run.json").is_file()
    captured = capfd.readouterr()
    assert "no ink" in captured.out + captured.err


def test_the_history_holds_changes_only_and_is_read_back_whole(base: Path) -> None:
    folder = adapt(base, "history", method="cap", **CAP)
    last = {row["path"]: row["label"] for row in rows(folder / PSEUDO_LABELS)}
    run = Run.read(folder)
    states = run.history[-1][1]
    found = {run.readable.name(int(r)): run.names[c] for r, c in zip(states.image_index, states.labels, strict=True)}
    assert found == last


def test_a_label_that_is_taken_away_is_a_change_to_none() -> None:
    def labels(index: list[int], classes: list[int]) -> PseudoLabels:
        return PseudoLabels.create(np.asarray(index), np.asarray(classes), np.full(len(index), 0.5, np.float32), 2)

    history = [(1, labels([3, 1], [0, 0])), (2, labels([3, 0], [1, 0])), (3, labels([3, 0], [1, 0]))]
    changes = changes_of(history, 4)
    assert changes.tolist() == [[1, 1, 0], [1, 3, 0], [2, 0, 0], [2, 1, -1], [2, 3, 1]]
