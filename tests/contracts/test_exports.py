"""The contract of all export formats: names survive, no partly written target, wrong settings are errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from export_runs import make_run

from captune.backbones.hf import HuggingFace
from captune.core import registry
from captune.core.errors import CaptuneError, InputError
from captune.core.settings import explain
from captune.exports.base import MARK, ExportFormat, ExportSettings, export
from captune.results.run import Run

FORMATS = registry.names("exports")
OTHER_THAN_DEFAULT = {
    "min_confidence": 0.01,
    "precision": 0.9,
    "source": "pseudo-labels",
    "prefix": "s3://bucket/",
    "images": "somewhere",
    "labels": "folders",
    "n_checked": 2,
    "int8": True,
    "splits": "50,25,25",
    "link": True,
}


@pytest.fixture(scope="module")
def run_folder(clip_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contract") / "run"
    made = make_run(folder, HuggingFace.load(str(clip_folder)))
    assert isinstance(made, Run)
    return folder


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def writer(name: str) -> type[ExportFormat]:
    return registry.load("exports", name)


def test_it_writes_what_it_says_and_nothing_else(name: str, run_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / writer(name).target
    before = {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")}
    made = export(run_folder, name, target)
    assert made.path == target
    assert made.remarks
    assert target.is_dir() == writer(name).is_folder
    assert (target / MARK).is_file() == writer(name).is_folder
    assert not [path for path in target.parent.iterdir() if path.name.startswith(".")]
    assert before == {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")}


def test_it_replaces_only_when_told(name: str, run_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / writer(name).target
    if writer(name).is_folder:
        target.mkdir()
        (target / "mine.txt").write_text("mine")
    else:
        target.write_text("mine")
    with pytest.raises(InputError):
        export(run_folder, name, target)
    if writer(name).is_folder:
        with pytest.raises(InputError):
            export(run_folder, name, target, overwrite=True)
        assert (target / "mine.txt").read_text() == "mine"
        (target / MARK).write_text("{}")
    export(run_folder, name, target, overwrite=True)
    assert not (target / "mine.txt").exists()
    assert target.is_dir() or target.read_bytes() != b"mine"


def test_settings_that_mean_nothing_to_it_are_refused(name: str, run_folder: Path, tmp_path: Path) -> None:
    known = {field.name for field in dataclasses.fields(ExportSettings)}
    assert writer(name).takes <= known == set(OTHER_THAN_DEFAULT)
    for key in known - writer(name).takes:
        with pytest.raises(InputError, match=key):
            export(run_folder, name, tmp_path / "x", **{key: OTHER_THAN_DEFAULT[key]})
    assert not (tmp_path / "x").exists()


def test_a_folder_that_is_no_run_is_a_clear_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(CaptuneError, match=r"run\.json"):
        export(tmp_path, name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_default_place_is_in_the_run(clip_folder: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "run", HuggingFace.load(str(clip_folder)))
    assert export(tmp_path / "run", "csv").path == tmp_path / "run" / "exports" / "labels.csv"


def test_every_setting_is_explained() -> None:
    assert set(explain(ExportSettings)) == {field.name for field in dataclasses.fields(ExportSettings)}


@pytest.mark.parametrize(
    ("format", "wrong"),
    [
        ("csv", {"min_confidence": 1.5}),
        ("csv", {"min_confidence": float("nan")}),
        ("csv", {"source": "guesses"}),
        ("onnx", {"n_checked": 0}),
    ],
)
def test_wrong_values_are_named(clip_folder: Path, tmp_path: Path, format: str, wrong: dict[str, object]) -> None:
    make_run(tmp_path / "run", HuggingFace.load(str(clip_folder)))
    with pytest.raises(InputError, match=next(iter(wrong)) if "nan" not in str(wrong) else "finite"):
        export(tmp_path / "run", format, **wrong)
