"""Data sets of images: each library reads the same folder, and duplicates stay together."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from report_runs import make_run
from vision_folder import import_vision

import captune
from captune.core.errors import InputError
from captune.exports.base import export
from captune.exports.imagefolder import duplicate_groups, folder_names, split_groups
from captune.report.measures import Measures
from captune.report.summary import describe_top
from captune.results.run import Run
from captune.world import write_world

NAMES = ("cat", "a/b", "A_b", "..")
PER_CLASS = 12


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("datasets")
    return make_run(base / "run", base / "images", NAMES, per_class=PER_CLASS, skipped=0)


def library(name: str) -> Any:
    module, why = import_vision(name)
    if module is None:
        pytest.skip(why)
    return module


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def expected(folder: Path, split: str) -> dict[str, str]:
    """Return the class folder of each file of a split."""
    files = [row["file"] for row in rows_of(folder) if row["split"] == split]
    return {file: Path(file).parent.name for file in files}


def test_torchvision_reads_an_image_folder(run_folder: Path, tmp_path: Path) -> None:
    datasets = library("torchvision.datasets")
    export(run_folder, "imagefolder", tmp_path / "out")
    for split in ("train", "val", "test"):
        read = datasets.ImageFolder(tmp_path / "out" / split)
        found = {str(Path(path).relative_to(tmp_path / "out")): read.classes[label] for path, label in read.samples}
        assert found == expected(tmp_path / "out", split)
        assert read[0][0].size == (96, 80)


def test_timm_reads_its_classes_in_the_order_of_the_run(run_folder: Path, tmp_path: Path) -> None:
    data = library("timm.data")
    out = tmp_path / "out"
    export(run_folder, "timm", out)
    read = data.create_dataset("", root=str(out), split="validation", class_map=str(out / "class_map.txt"))
    labels = {row["file"]: NAMES.index(row["label"]) for row in rows_of(out) if row["split"] == "val"}
    found = {f"val/{read.filename(i)}": int(read[i][1]) for i in range(len(read))}
    assert found == labels


def test_datasets_reads_all_splits(run_folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    out = tmp_path / "out"
    export(run_folder, "hf-dataset", out)
    read = datasets.load_dataset("imagefolder", data_dir=str(out), cache_dir=str(tmp_path / "cache"))
    assert set(read) == {"train", "validation", "test"}
    for split, part in read.items():
        names = part.features["label"].names
        own = expected(out, "val" if split == "validation" else split)
        assert sorted(names[label] for label in part["label"]) == sorted(own.values())


@pytest.mark.parametrize("link", [False, True])
def test_images_are_copied_or_linked(run_folder: Path, tmp_path: Path, link: bool) -> None:
    out = tmp_path / "out"
    made = export(run_folder, "yolo-cls", out, link=link, splits="50,25,25")
    rows = rows_of(out)
    assert len(rows) == PER_CLASS * len(NAMES)
    for row in rows:
        assert (out / row["file"]).is_symlink() == link
        original = run_folder.parent / "images" / row["path"]
        assert (out / row["file"]).read_bytes() == original.read_bytes()
        assert row["source"] == "prediction"
    counts = [sum(row["split"] == split for row in rows) for split in ("train", "val", "test")]
    assert counts == [24, 12, 12]
    assert "| cat | 12 |" in (out / "README.md").read_text(encoding="utf-8")
    assert "train 24, val 12, test 12" in made.remarks[0]


def test_near_duplicates_are_never_in_two_splits(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", tmp_path / "images", ("cat", "dog"), per_class=20, skipped=0)
    pictures = sorted((tmp_path / "images").rglob("*.png"))
    rng = np.random.default_rng(0)
    for number, path in enumerate(pictures):
        if number % 2 == 0:
            smooth = Image.fromarray(rng.integers(0, 256, (10, 12, 3), dtype=np.uint8)).resize((96, 80))
            smooth.save(path)
            smooth.resize((120, 100)).save(pictures[number + 1])  # the same picture, a little larger
    export(folder, "imagefolder", tmp_path / "out", splits="50,25,25")
    split = {row["path"]: row["split"] for row in rows_of(tmp_path / "out")}
    names = [str(path.relative_to(tmp_path / "images")) for path in pictures]
    assert all(split[a] == split[b] for a, b in zip(names[::2], names[1::2], strict=True))
    assert len(set(split.values())) == 3


def test_codes_that_differ_in_a_few_bits_are_one_group() -> None:
    codes = np.asarray([0, 0b111, 0b1111 << 20, 1 << 40, 0b111111], dtype=np.uint64)
    groups = duplicate_groups(codes)
    assert groups[0] == groups[1] == groups[3] == groups[4]  # the last one through the second
    assert groups[2] != groups[0]
    assert len(set(duplicate_groups(np.zeros(5000, dtype=np.uint64)).tolist())) == 1


def test_splits_are_even_in_each_class_and_keep_groups() -> None:
    groups, labels = np.arange(100) // 2, np.repeat([0, 1], 50)
    split = split_groups(groups, labels, (0.8, 0.1, 0.1))
    assert (split[::2] == split[1::2]).all()
    for c in (0, 1):
        assert np.abs(np.bincount(split[labels == c]) - [40, 5, 5]).max() <= 1


def test_folder_names_are_safe_and_unique() -> None:
    assert folder_names(["a/b", "A_b", "..", "", "é 1"]) == ["a_b", "A_b_2", "class", "class_2", "é 1"]


def test_wrong_shares_gone_images_and_runs_of_others_are_errors(run_folder: Path, tmp_path: Path) -> None:
    for splits in ("80,20", "a,b,c", "0,0,0", "-1,1,1"):
        with pytest.raises(InputError):
            export(run_folder, "imagefolder", tmp_path / "out", splits=splits)
    shutil.copytree(run_folder, tmp_path / "received")
    with pytest.raises(InputError, match="images"):
        export(tmp_path / "received", "imagefolder", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        export(run_folder, "imagefolder", tmp_path / "out", images=str(tmp_path / "empty"))
    assert not (tmp_path / "out").exists()
    export(tmp_path / "received", "imagefolder", tmp_path / "out", images=str(run_folder.parent / "images"))
    assert len(rows_of(tmp_path / "out")) == PER_CLASS * len(NAMES)


def test_only_certified_labels_are_exported(tmp_path: Path) -> None:
    names = ("striped", "tartan", "houndstooth", "argyle", "polka-dotted", "honeycomb", "leopard", "tie-dye")
    write_world(tmp_path / "world", 20, seed=5)
    for folder in (tmp_path / "world").iterdir():
        if folder.name not in names:
            shutil.rmtree(folder)
    run = tmp_path / "run"
    common: dict[str, Any] = {"backbone": "embedded:patterns", "workers": 0, "quiet": True}
    captune.adapt(tmp_path / "world", names, method="transductive", out=run, **common)
    with pytest.raises(InputError, match=r"--for-precision 0\.9"):
        export(run, "imagefolder", tmp_path / "out", precision=0.9)
    session = captune.open_session(run, quiet=True)
    answers = {check.position: Path(check.image).parent.name for check in session.suggest_checks(0.9)}
    session.label(answers, suggestion="precision")
    session.save()
    made = export(run, "imagefolder", tmp_path / "out", precision=0.9)
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text(encoding="utf-8"))
    rows = rows_of(tmp_path / "out")
    assert 60 < certificate["n_accepted"] == len(rows) <= 160
    assert np.mean([Path(row["path"]).parent.name == row["label"] for row in rows]) >= 0.9
    assert {row["source"] for row in rows} == {"person", "prediction"}
    assert "Certificate" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert made.path == tmp_path / "out"
    top = describe_top(Measures(Run.read(run)))["shipping"]
    assert top["why"] == certificate["sentence"]
    assert "--precision 0.9" in top["command"]
