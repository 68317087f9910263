"""The same images in tar shards: the same answers as from the folder, from adapt to the report."""

from __future__ import annotations

import csv
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captune as package

CLASSES = "cat,red dog"


@pytest.fixture(scope="module")
def shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the photos in two shards, in the order of the folder."""
    folder = tmp_path_factory.mktemp("shards")
    files = sorted(path for path in photos.rglob("*") if path.is_file())
    for number, part in enumerate((files[:4], files[4:])):
        with tarfile.open(folder / f"photos-{number:03d}.tar", "w") as tar:
            for file in part:
                tar.add(file, file.relative_to(photos).as_posix())
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_adapt_from_shards_equals_adapt_from_the_folder(
    photos: Path, shards: Path, backbone: str, tmp_path: Path, preset: str
) -> None:
    short = {"epochs": 2, "iterations": 2, "k": 2, "train_batch": 4, "strong_views": 2, "workers": 0, "quiet": True}
    runs = [
        package.adapt(
            source, CLASSES, backbone=backbone, method="cap", preset=preset, cache=str(tmp_path / name), **short
        )
        for name, source in (("folder", photos), ("shards", shards))
    ]
    assert np.array_equal(runs[0].predictions.probabilities, runs[1].predictions.probabilities)


def test_predict_evaluate_and_report_from_shards(
    captune: Any, photos: Path, shards: Path, backbone: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = captune("adapt", shards, "--classes", CLASSES, "--backbone", backbone, "--method", "zero_shot", "--out", run)
    assert done.code == 0, done.err
    assert (run / "report.html").read_text(encoding="utf-8").count("data:image/jpeg") > 0  # pictures out of the shards
    for name, source in (("folder", photos), ("shards", f"{shards}/photos-{{000..001}}.tar")):
        assert captune("predict", run, source, "--out", tmp_path / f"{name}.csv").code == 0
    from_folder, from_shards = rows(tmp_path / "folder.csv"), rows(tmp_path / "shards.csv")
    assert [row["path"].partition(".tar/")[2] for row in from_shards] == [row["path"] for row in from_folder]
    assert [row["confidence"] for row in from_shards] == [row["confidence"] for row in from_folder]
    of_run = [{key: row[key] for key in ("path", "label", "confidence")} for row in rows(run / "predictions.csv")]
    assert of_run == from_shards
    answers = [captune("evaluate", run, source, "--labels", "folders", "--json").out for source in (photos, shards)]
    assert answers[0] == answers[1]


def test_a_damaged_shard_is_told_before_weights_load(captune: Any, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"half a tar")
    done = captune("adapt", tmp_path, "--classes", CLASSES, "--backbone", "hf:/no/such/model")
    assert done.code != 0
    assert "x.tar" in done.err
