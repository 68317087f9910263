"""One road to predictions: the command, Python and the service give the same answers and skip the same files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from served import Client
from toys import write_images

import captune as package
from captune.cli import main
from captune.core.settings import RunSettings
from captune.results.image_classifier import ImageClassifier, SkippedWarning
from captune.web.prediction import predicting
from captune.web.server import Limits, Service, running

NAMES = ["cat", "red dog"]
BAD = {"bad.png": "not an image of a known format", "empty.jpg": "the file is empty"}
Answers = tuple[dict[str, list[float]], dict[str, str]]
"""Probabilities by file name, and why others were skipped."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return images of many kinds: gray, with 16 bits, transparent, turned by its orientation, and two bad files."""
    folder = write_images(tmp_path_factory.mktemp("predicted") / "new", 3, side=40)
    picture = Image.open(folder / "000.png")
    picture.convert("L").save(folder / "gray.png")
    picture.convert("RGBA").save(folder / "clear.png")
    Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40).save(folder / "deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.crop((0, 0, 40, 20)).save(folder / "turned.jpg", exif=exif)
    (folder / "bad.png").write_bytes(b"text")
    (folder / "empty.jpg").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def models(photos: Path, backbone: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    run = tmp_path_factory.mktemp("model") / "run"
    package.adapt(photos, NAMES, method="zero_shot", backbone=backbone, out=run, workers=0, quiet=True)
    return {"run": run, "onnx": package.export(run, "onnx").path}


def by_command(model: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> Answers:
    capfd.readouterr()
    assert main(["predict", str(model), str(folder), "--top-k", "2", "--workers", "0", "--quiet"]) == 0
    captured = capfd.readouterr()
    rows = {}
    for row in csv.DictReader(io.StringIO(captured.out)):
        found = {row["label"]: float(row["confidence"]), row["label_2"]: float(row["confidence_2"])}
        rows[row["path"]] = [found[name] for name in NAMES]
    told = [line.split(": ", 2) for line in captured.err.splitlines() if line.startswith("skipped: ")]
    return rows, {name: reason for _, name, reason in told}


def by_python(model: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> Answers:
    names = sorted(path.name for path in folder.iterdir())
    classifier = package.load(model)
    with pytest.warns(SkippedWarning) as told:
        rows, labels = classifier.predict_proba(folder), classifier.predict(folder)
    assert all(reason in str(told[0].message) for reason in BAD.values())
    assert [label is None for label in labels] == np.isnan(rows).any(axis=1).tolist() == [name in BAD for name in names]
    found = classifier.predictions(folder)
    assert found.images is not None
    assert np.array_equal(found.probabilities, rows[found.image_index])
    return (
        {name: row for name, row in zip(names, rows.tolist(), strict=True) if name not in BAD},
        {found.images.name(position): reason for position, reason in found.skipped.items()},
    )


def by_service(model: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> Answers:
    classifier: Any = package.load(model)
    rows, skipped = {}, {}
    with (
        Service("127.0.0.1", 0, Limits(), "", lambda _: None, lambda _: None) as service,
        predicting(classifier, "images", service.limits) as app,
        running(service, app),
    ):
        client = Client(service, classifier)
        for path in sorted(folder.iterdir()):
            status, _, answer = client.ask("/predict", path.read_bytes())
            if status == 200:
                found = {entry["label"]: entry["probability"] for entry in answer["predictions"]}
                rows[path.name] = [found[name] for name in NAMES]
            else:
                assert 400 <= status < 500
                skipped[path.name] = str(answer)
    return rows, skipped


@pytest.mark.parametrize("model", ["run", "onnx"])
@pytest.mark.parametrize("entry", [by_command, by_python, by_service])
def test_every_entry_gives_the_same_answers(
    entry: Callable[..., Answers], model: str, models: dict[str, Path], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = package.load(models["run"]).predictions(folder)
    assert expected.images is not None
    rows, skipped = entry(models[model], folder, capfd)
    assert list(rows) == [expected.images.name(position) for position in expected.image_index]
    assert np.allclose(list(rows.values()), expected.probabilities, atol=1e-4)
    assert skipped.keys() == BAD.keys()
    if entry is not by_service:
        assert skipped == BAD


def test_settings_name_the_cache(models: dict[str, Path], folder: Path, tmp_path: Path) -> None:
    classifier: ImageClassifier = package.load(models["run"])
    settings = RunSettings(workers=0, cache=str(tmp_path / "cache"))
    cached = classifier.predictions(folder, settings=settings)
    assert list((tmp_path / "cache" / "embeddings").rglob("*.safetensors"))
    assert np.allclose(cached.probabilities, classifier.predictions(folder).probabilities, atol=1e-6)


def test_a_folder_without_a_readable_image_is_an_error(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"text")
    for model in models.values():
        with pytest.raises(package.CaptuneError, match=r"a\.png"):
            package.load(model).predict(tmp_path)


def test_evaluate_leaves_out_unknown_classes_or_renames_them(
    models: dict[str, Path], folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n000.png,cat\n001.png,red dgo\n")
    words = ["evaluate", str(models["run"]), str(folder), "--labels", str(table), "--json", "--workers", "0"]
    assert main(words) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["n_images"] == 1
    assert "'red dog'" in captured.err
    assert main([*words, "--rename", "red dgo=red dog"]) == 0
    assert json.loads(capfd.readouterr().out)["n_images"] == 2
