"""UPL, FPL, GRIP and CPL from end to end on a tiny CLIP: labels, tuners, rounds, kills, and what is done once only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import write_classes

import captune
from captune.backbones.hf import HuggingFace
from captune.core.errors import InputError, RunFolderError
from captune.results.run import Run
from captune.training.loop import Schedule

NAMES = ["cat", "red dog", "striped bird"]
METHODS = ["cpl", "fpl", "grip", "upl"]
SHORT: dict[str, Any] = {"epochs": 2, "train_batch": 5, "warmup_epochs": 1}
OWN: dict[str, dict[str, Any]] = {
    "cpl": {"rounds": 3},
    "fpl": {"k": 2},
    "grip": {"rounds": 3},
    "upl": {"k": 2, "strong_views": 2, "ensemble": 3},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("photos"), NAMES, 8)


def adapt(photos: Path, clip: Path, method: str, preset: str = "full", **changes: Any) -> Run:
    common = {
        "backbone": f"hf:{clip}",
        "method": method,
        "preset": preset,
        "workers": 0,
        "quiet": True,
        "keep_better": False,
    }
    own = {**OWN[method], **({"ensemble": 1} if method == "upl" and preset == "quick" else {})}
    return captune.adapt(photos, NAMES, **{**common, **SHORT, **own, **changes})


def table(photos: Path, folder: Path, per_class: dict[str, int]) -> Path:
    rows = [f"{photos / name / f'{i:03d}.png'},{name}" for name, n in per_class.items() for i in range(n)]
    file = folder / "labels.csv"
    file.write_text("path,label\n" + "\n".join(rows))
    return file


def bits(run: Run) -> bytes:
    tensors = run.classifier.tuner.state_dict()
    return b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))


@pytest.mark.parametrize("method", METHODS)
def test_every_round_is_recorded_and_reported(photos: Path, clip_folder: Path, tmp_path: Path, method: str) -> None:
    run = adapt(photos, clip_folder, method, out=tmp_path / "run")
    n_parts = {"fpl": 1}.get(method, 3)
    assert [facts["epoch"] for facts in run.rounds] == list(range(1, 2 * n_parts + 1))
    assert [facts["round"] for facts in run.rounds] == sorted(list(range(1, n_parts + 1)) * 2)
    assert all(np.isfinite(facts["loss"]) for facts in run.rounds)
    assert run.evidence is not None
    assert [epoch for epoch, _ in run.evidence.history] == list(range(2, 2 * n_parts + 1, 2))
    rows = (tmp_path / "run" / "pseudo_labels.csv").read_text().splitlines()
    assert len(rows) - 1 == sum(run.rounds[-1]["pseudo_labeled"]) > 0
    assert 'id="training"' in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    if method == "grip":
        assert [sum(facts["pseudo_labeled"]) for facts in run.rounds[::2]] == [6, 15, 24]  # k = 2, 5, 8


@pytest.mark.parametrize("tuner", ["feature_adapter", "maple", "text_prompts"])
@pytest.mark.parametrize("method", ["cpl", "upl"])
def test_any_tuner_can_be_the_student(photos: Path, clip_folder: Path, method: str, tuner: str) -> None:
    changes = {"ensemble": 1} if method == "upl" else {"rounds": 1}
    run = adapt(photos, clip_folder, method, tuner=tuner, epochs=1, **changes)
    assert run.classifier.tuner_name == tuner
    assert run.predictions.probabilities.shape == (24, 3)


def test_settings_reach_the_tuner(photos: Path, clip_folder: Path) -> None:
    run = adapt(photos, clip_folder, "fpl", tuner_settings={"n_context": 3})
    assert run.classifier.tuner.state_dict()["context"].shape[1] == 3
    with pytest.raises(InputError, match=r"'n_contxt'.*n_context"):
        adapt(photos, clip_folder, "fpl", tuner_settings={"n_contxt": 3})
    with pytest.raises(InputError, match="frozen"):
        adapt(photos, clip_folder, "fpl", tuner="frozen")


@pytest.mark.parametrize("preset", ["quick", "full"])
@pytest.mark.parametrize("method", METHODS)
def test_given_labels_are_learned_from(
    photos: Path, clip_folder: Path, tmp_path: Path, method: str, preset: str
) -> None:
    few = adapt(photos, clip_folder, method, preset, labels=table(photos, tmp_path, dict.fromkeys(NAMES, 2)))
    complete = {"labels": table(photos, tmp_path, {"cat": 8, "red dog": 7}), "target_classes": "auto"}
    some = adapt(photos, clip_folder, method, preset, **complete)
    assert len({bits(run) for run in (few, some, adapt(photos, clip_folder, method, preset))}) == 3
    # Where the labels of some classes are complete, only the others are pseudo-labeled.
    assert all(
        facts["pseudo_labeled"][0] == facts["pseudo_labeled"][1] == 0 < facts["pseudo_labeled"][2]
        for facts in some.rounds
    )


@pytest.mark.parametrize("method", METHODS)
def test_no_image_is_encoded_twice(
    photos: Path, clip_folder: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = HuggingFace.image_features

    def counted(self: HuggingFace, pixels: torch.Tensor, edit: Any = None) -> torch.Tensor:
        encoded.append(len(pixels))
        return encode(self, pixels, edit)

    monkeypatch.setattr(HuggingFace, "image_features", counted)
    run = adapt(photos, clip_folder, method, cache=str(tmp_path))
    n_crops = (
        2 * sum(run.rounds[-1]["pseudo_labeled"]) if method == "upl" else 0
    )  # crops of the pseudo-labeled ones only
    assert sum(encoded) == 24 + n_crops


@pytest.mark.parametrize(
    "moment", [(1, 1), *(pytest.param(moment, marks=pytest.mark.slow) for moment in ((1, 0), (2, 1), (3, 0)))]
)
@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_round_goes_on_to_the_same_bits(
    photos: Path, clip_folder: Path, tmp_path: Path, method: str, moment: tuple[int, int]
) -> None:
    part, epoch = moment
    if method == "fpl" and part > 1:
        return
    labels = table(photos, tmp_path, {"cat": 8, "red dog": 7}) if epoch else None
    common = {"cache": str(tmp_path / "cache"), "labels": labels}
    whole = adapt(photos, clip_folder, method, **common)
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("captune.methods._few_labels.FewLabelTraining.batches", _stopped_at(part, epoch))
        with pytest.raises(KeyboardInterrupt):
            adapt(photos, clip_folder, method, out=out, **common)
    if moment != (1, 0):  # nothing was saved before
        with pytest.raises(RunFolderError, match="settings"):
            adapt(photos, clip_folder, method, out=out, resume=True, learning_rate=0.5, **common)
    resumed = adapt(photos, clip_folder, method, out=out, resume=True, **common)
    assert bits(resumed) == bits(whole)
    assert resumed.rounds == whole.rounds
    assert not (out / "checkpoints").exists()


def _stopped_at(part: int, epoch: int) -> Any:
    from captune.methods._few_labels import FewLabelTraining

    batches = FewLabelTraining.batches

    def stopped(self: Schedule, now: int, first_step: int) -> Iterator[Any]:
        if (getattr(self, "part", 0), now) == (part, epoch):
            raise KeyboardInterrupt
        yield from batches(self, now, first_step)  # type: ignore[arg-type]

    return stopped


def test_only_text_prompts_are_averaged(photos: Path, clip_folder: Path) -> None:
    run = adapt(photos, clip_folder, "upl")
    assert run.classifier.tuner.state_dict()["context"].shape[0] == 3
    with pytest.raises(InputError, match=r"ensemble = 3.*text_prompts"):
        adapt(photos, clip_folder, "upl", tuner="feature_adapter")


@pytest.mark.parametrize(("method", "expected"), [("upl", True), ("fpl", False), ("grip", False), ("cpl", False)])
def test_a_full_stop_follows_the_class_name_as_in_the_authors_code(
    photos: Path, clip_folder: Path, method: str, expected: bool
) -> None:
    run = adapt(photos, clip_folder, method, epochs=1)
    assert run.classifier.tuner.settings.full_stop is expected
    other = adapt(photos, clip_folder, method, epochs=1, tuner_settings={"full_stop": not expected})
    assert other.classifier.tuner.settings.full_stop is not expected
    assert bits(run) != bits(other)


def test_pools_of_cpl_grow_from_what_they_held(photos: Path, clip_folder: Path) -> None:
    run = adapt(photos, clip_folder, "cpl", rounds=4, alpha=0.0, beta=0.0)
    fills = [facts["pseudo_labeled"] for facts in run.rounds if facts["epoch"] % 2]
    capacities = [
        [min(held + k - max(before), k) for held in before] for before, k in zip(fills[:-1], (4, 6, 8), strict=True)
    ]
    assert np.all(np.array(fills[1:]) <= capacities)
    assert capacities[-1] != [8, 8, 8]  # a class was starved


def test_beta_follows_the_number_of_classes(photos: Path, clip_folder: Path) -> None:
    default, same, other = (
        adapt(photos, clip_folder, "cpl", "quick", **changes) for changes in ({}, {"beta": 1 - 2 / 3}, {"beta": 0.9})
    )
    assert bits(default) == bits(same) != bits(other)
