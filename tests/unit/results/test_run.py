"""A run is a folder: what it holds, and what a wrong one answers."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from models import tiny_clip
from toys import write_images

import captune
from captune.core.errors import RunFolderError
from captune.results.run import CARD, load, read_card


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    base = tmp_path_factory.mktemp("run")
    photos = write_images(base / "photos", 4)
    (photos / "002.png").write_bytes(b"")
    backbone = f"hf:{tiny_clip(base / 'clip')}"
    short = {"epochs": 1, "iterations": 2, "workers": 0, "quiet": True}
    run = captune.adapt(photos, ["cat", "dog"], backbone=backbone, out=base / "run", cache=str(base / "cache"), **short)
    return base, run


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_folder_holds_everything(made: tuple[Path, Any]) -> None:
    base, run = made
    folder = base / "run"
    expected = {"classifier", "predictions.csv", "run.json", "skipped.csv", "settings.yaml"}
    assert expected <= {path.name for path in folder.iterdir()}
    predicted = rows(folder / "predictions.csv")
    assert [row["path"] for row in predicted] == ["000.png", "001.png", "003.png"]
    assert [row["label"] for row in predicted] == [run.classifier.names[label] for label in run.predictions.labels]
    assert [float(row["confidence"]) for row in predicted] == pytest.approx(run.predictions.confidence, abs=1e-6)
    assert rows(folder / "skipped.csv") == [{"path": "002.png", "reason": "the file is empty"}]
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    assert settings == dict(run.settings)
    assert settings["method"] == "cap"


def test_the_card_records_versions_seed_and_fingerprints(made: tuple[Path, Any]) -> None:
    base, run = made
    card = read_card(base / "run")
    assert (card["n_images"], card["n_skipped"], card["classes"]) == (4, 1, ["cat", "dog"])
    environment = card["environment"]
    assert environment["seed"] == 0
    assert environment["data_fingerprint"] == run.images.fingerprint
    assert environment["backbone_fingerprint"] == run.classifier.backbone.fingerprint()
    assert environment["versions"]["captune"] == captune.__version__


def test_a_run_or_its_classifier_is_loaded(made: tuple[Path, Any]) -> None:
    base, run = made
    photo = base / "photos" / "000.png"
    for folder in (base / "run", str(base / "run"), base / "run" / "classifier"):
        assert captune.load(folder).predict([photo]) == run.classifier.predict([photo])


def test_replacing_a_run_leaves_no_old_card_or_export_behind(
    made: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = made
    run.save(tmp_path)
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "model.onnx").write_bytes(b"of the old run")

    def fail(self: object, folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(run.classifier), "save", fail)
    with pytest.raises(KeyboardInterrupt):
        run.save(tmp_path)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        read_card(tmp_path)
    assert not (tmp_path / "exports").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "not a captune-run file"),
        ('{"format": "captune-run", "version": 99}', "version 99.*Upgrade"),
        ('{"format": "captune-run"}', "version None"),
        (None, "captune adapt"),
    ],
)
def test_a_wrong_folder_is_one_clear_error(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / CARD).write_text(content)
    with pytest.raises(RunFolderError, match=words):
        load(tmp_path)
