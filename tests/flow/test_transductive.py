"""The transductive method from end to end on the embedded world: better than zero-shot, for new images too."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captune
from captune.mixture.gaussian_mixture import MixtureFit, fit_gaussian_mixture
from captune.results.run import Run
from captune.world import class_names, descriptions_path, write_world

NAMES = list(class_names())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder / "train", 6, seed=0, split="train")
    write_world(folder / "test", 2, seed=0, split="test")
    return folder


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captune.pipeline.write_report_of", lambda *_: None)  # seconds each, and tested elsewhere


def adapt(world: Path, **settings: Any) -> Run:
    common = {
        "backbone": "embedded:patterns",
        "workers": 0,
        "quiet": True,
        "cache": str(world / "cache"),
        "keep_better": False,
    }
    return captune.adapt(world / "train", NAMES, **{"method": "transductive", **common, **settings})


def labels_of(paths: list[Path]) -> list[str]:
    return [path.parent.name for path in paths]


def accuracy(run: Run) -> float:
    truth = labels_of([run.images.paths[i] for i in run.predictions.image_index])
    return float(
        np.mean([run.classifier.names[c] == name for c, name in zip(run.predictions.labels, truth, strict=True)])
    )


def write_labels(world: Path, table: Path, per_class: int, classes: list[str]) -> Path:
    rows = [f"{path},{name}" for name in classes for path in sorted((world / "train" / name).iterdir())[:per_class]]
    table.write_text("path,label\n" + "\n".join(rows) + "\n")
    return table


def test_descriptions_and_clusters_beat_the_names_and_carry_over_to_new_images(world: Path, tmp_path: Path) -> None:
    named = adapt(world, method="zero_shot")
    run = adapt(world, describer=f"file:{descriptions_path()}", out=tmp_path / "run")
    assert accuracy(run) > accuracy(named) + 0.2
    new = sorted((world / "test").rglob("*.png"))
    loaded = captune.load(tmp_path / "run")
    assert np.mean([a == b for a, b in zip(loaded.predict(new), labels_of(new), strict=True)]) > 0.85
    with (tmp_path / "run" / "pseudo_labels.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6 * 24


def test_two_labels_a_class_mend_names_that_mislead(world: Path, tmp_path: Path) -> None:
    table = write_labels(world, tmp_path / "two.csv", 2, NAMES)
    assert accuracy(adapt(world, labels=table)) > accuracy(adapt(world)) + 0.1


@pytest.mark.parametrize("describe", ["mismatched", "none"])
def test_pseudo_labels_name_only_classes_that_are_not_complete(world: Path, tmp_path: Path, describe: str) -> None:
    table = write_labels(world, tmp_path / "seen.csv", 6, NAMES[:15])
    described = {"describe": describe, "describer": f"file:{descriptions_path()}"}
    run = adapt(world, labels=table, target_classes="auto", **described, out=tmp_path / "run")
    with (tmp_path / "run" / "pseudo_labels.csv").open() as file:
        made = [row["label"] for row in csv.DictReader(file)]
    assert len(made) == 6 * 9
    assert set(made) <= set(NAMES[15:])
    assert accuracy(run) > 0.75


def test_less_image_weight_and_more_anchoring_change_the_answer(world: Path) -> None:
    plain, quieter, held = (
        adapt(world, **changes).predictions.probabilities for changes in ({}, {"image_weight": 1.0}, {"alpha": 1e6})
    )
    assert not np.allclose(plain, quieter, atol=1e-3)
    assert not np.allclose(plain, held, atol=1e-3)


def test_cap_may_start_from_the_clusters(world: Path, tmp_path: Path) -> None:
    short = {"epochs": 1, "iterations": 2, "k": 2, "strong_views": 1, "train_batch": 4, "concept_alignment": False}
    made = {}
    for start in ("zero_shot", "transductive"):
        folder = tmp_path / start
        adapt(
            world,
            method="cap",
            preset="quick",
            start_from=start,
            labels=write_labels(world, tmp_path / "two.csv", 2, NAMES),
            out=folder,
            **short,
        )
        with (folder / "pseudo_labels.csv").open() as file:
            made[start] = {row["path"]: row["label"] for row in csv.DictReader(file)}
    right = {start: np.mean([Path(p).parts[0] == name for p, name in found.items()]) for start, found in made.items()}
    assert right["transductive"] > right["zero_shot"]


def test_zero_shot_is_kept_where_adaptation_looks_harmful(
    world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def collapse(*inputs: Any, **settings: Any) -> MixtureFit:
        found = fit_gaussian_mixture(*inputs, **settings)
        return replace(found, offsets=found.offsets + 1e4 * (np.arange(len(found.offsets)) == 0))

    monkeypatch.setattr("captune.methods.base.fit_gaussian_mixture", collapse)  # one class takes everything
    spoiled = adapt(world, quiet=False)
    assert "predictions collapsed" in " ".join(capfd.readouterr().err.split())
    assert spoiled.kept == "adapted"

    kept = adapt(world, keep_better=True, out=tmp_path / "run")
    zero_shot = adapt(world, method="zero_shot")
    assert np.allclose(kept.predictions.probabilities, zero_shot.predictions.probabilities, atol=1e-5)
    card = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (card["kept"], card["settings"]["method"], card["health"]["verdict"]) == (
        "zero_shot",
        "transductive",
        "harmful",
    )
    assert captune.load(tmp_path / "run").tuner_name == "frozen"
    assert not Run.read(tmp_path / "run").is_adapted


def test_a_helpful_adaptation_is_kept(world: Path) -> None:
    run = adapt(world, describer=f"file:{descriptions_path()}", keep_better=True)
    assert run.kept == "adapted"
    assert run.evidence is not None
    assert run.evidence.health is not None
    assert run.evidence.health.verdict == "helpful"
    assert run.classifier.tuner_name == "gaussian"
