"""The ONNX file answers as the run does, for every tuner and kind of backbone, in any batch, without torch."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from export_runs import NAMES, make_run
from models import identifier
from toys import write_images

import captune
from captune.backbones.hf import HuggingFace
from captune.core import registry
from captune.core.errors import CaptuneError, InputError, MissingExtraError, ModelError, RunFolderError
from captune.core.files import add_digest
from captune.data.images import find_images
from captune.data.views import Preprocessing
from captune.exports import onnx as onnx_export
from captune.exports.base import export
from captune.results.classifier import Classifier
from captune.results.image_classifier import EMBEDDINGS, KEY, OnnxClassifier
from captune.results.run import Run

CASES = [*((tuner, "clip") for tuner in registry.names("tuners"))]
CASES += [("frozen", "siglip"), ("maple", "siglip"), ("feature_adapter", "dual_dinov2"), ("maple", "dual_vit")]


@pytest.fixture(scope="module")
def model(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(run_folder, "onnx", tmp_path_factory.mktemp("onnx") / "model.onnx", int8=True).path


@pytest.mark.parametrize(("tuner", "kind"), CASES)
def test_it_answers_as_the_run_does(tuner: str, kind: str, model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    source, _, name = identifier(kind, model_folder(kind)).partition(":")
    made = make_run(tmp_path / "run", registry.load("backbones", source).load(name), tuner)
    exported = OnnxClassifier(export(tmp_path / "run", "onnx", tmp_path / "model.onnx").path)
    assert exported.names == NAMES
    for n in (1, 2, 5):
        found = exported.predict_proba(made.images.paths[:n])
        assert found.shape == (n, len(NAMES))
        assert np.abs(found - made.predictions.probabilities[:n]).max() < 1e-4
    views = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    with torch.inference_mode():
        pixels = torch.from_numpy(exported.preprocessing.standardize(views))
        expected = made.classifier.tuner.image_embeddings(pixels).numpy()
    assert np.allclose(exported.score_views(views, EMBEDDINGS), expected, atol=1e-4)
    both = [classifier.embed(list(views)) for classifier in (exported, made.classifier)]
    np.testing.assert_allclose(*both, atol=1e-4)


def test_scores_of_neighbors_answer_as_the_run_does(clip_folder: Path, tmp_path: Path) -> None:
    photos, new = write_images(tmp_path / "photos", 12, side=36), write_images(tmp_path / "new", 5, side=40, seed=1)
    settings = {"method": "zlap", "backbone": f"hf:{clip_folder}", "keep_better": False, "cache": str(tmp_path / "c")}
    made = captune.adapt(photos, NAMES, out=tmp_path / "run", quiet=True, workers=0, **settings)
    exported = OnnxClassifier(export(tmp_path / "run", "onnx", tmp_path / "model.onnx").path)
    assert np.abs(exported.predict_proba(made.images.paths) - made.predictions.probabilities).max() < 1e-4
    paths = find_images(new).paths
    assert np.abs(exported.predict_proba(paths) - made.classifier.predict_proba(paths)).max() < 1e-4


def test_metadata_says_all_that_another_program_needs(model: Path, run: Run) -> None:
    card = json.loads({entry.key: entry.value for entry in onnx.load(model).metadata_props}[KEY])
    own = run.classifier.backbone.preprocessing
    assert card["names"] == list(NAMES)
    assert card["preprocessing"]["mean"] == list(own.mean)
    assert {key: card["preprocessing"][key] for key in ("image_size", "resize", "resample")} == {
        "image_size": 32,
        "resize": 32,
        "resample": "bicubic",
    }
    assert card["logit_scale"] == pytest.approx(run.classifier.backbone.logit_scale)
    assert card["backbone"] == run.classifier.backbone.identifier
    assert (card["tuner"], card["precision"]) == ("frozen", "float32")
    assert card["check"]["n_images"] == 12
    assert card["check"]["max_difference"] < 1e-4
    assert card["check"]["same_top_1"] == 1.0


def test_the_small_model_is_smaller_and_says_how_far_off_it_is(model: Path) -> None:
    small = model.with_name("model.int8.onnx")
    assert small.stat().st_size < 0.9 * model.stat().st_size
    loaded = OnnxClassifier(small)
    assert loaded.card.precision == "int8"
    check = loaded.card.check
    assert 1e-7 < check["mean_difference"] <= check["max_difference"] <= 1
    assert 0 <= check["same_top_1"] <= 1


def test_labels_give_accuracy(run_folder: Path, run: Run, tmp_path: Path) -> None:
    labels = [NAMES[label] for label in run.predictions.labels[:4]]
    wrong = NAMES[(run.predictions.labels[3] + 1) % len(NAMES)]
    with (tmp_path / "own.csv").open("w", encoding="utf-8", newline="") as file:
        entries = [(run.images.name(i), name) for i, name in enumerate([*labels[:3], wrong])]
        csv.writer(file).writerows([("path", "label"), *entries])
    made = export(run_folder, "onnx", tmp_path / "m.onnx", labels=str(tmp_path / "own.csv"))
    assert OnnxClassifier(made.path).card.check["accuracy"] == 0.75
    assert "Accuracy 75.00%, PyTorch 75.00%" in made.remarks[0]


def test_captune_load_takes_a_run_or_a_file(model: Path, run_folder: Path, run: Run) -> None:
    photo = run.images.paths[0]
    assert captune.load(model).predict([photo]) == captune.load(run_folder).predict([photo])
    assert isinstance(captune.load(run_folder), Classifier)
    assert isinstance(captune.load(str(model)), OnnxClassifier)


def test_captune_load_finds_the_file_in_its_folder(model: Path, tmp_path: Path) -> None:
    assert isinstance(captune.load(model.parent), OnnxClassifier)  # beside model.int8.onnx
    (tmp_path / "mine.onnx").write_bytes(model.read_bytes())
    assert captune.load(tmp_path).names == NAMES
    (tmp_path / "other.onnx").write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"mine\.onnx.*other\.onnx"):
        captune.load(tmp_path)
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(RunFolderError, match=r"notes\.txt"):
        captune.load(tmp_path / "notes.txt")


def test_whole_folders_are_predicted_and_damaged_files_skipped(model: Path, run: Run, tmp_path: Path) -> None:
    for i, path in enumerate(run.images.paths):
        (tmp_path / f"{i:02d}.png").write_bytes(path.read_bytes() if i != 3 else b"text")
    predictions = OnnxClassifier(model).predictions(tmp_path)
    assert predictions.skipped == {3: "not an image of a known format"}
    kept = [i for i in range(12) if i != 3]
    assert predictions.image_index.tolist() == kept
    assert np.allclose(predictions.probabilities, run.predictions.probabilities[kept], atol=1e-4)
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "bad.png").write_bytes(b"text")
    with pytest.raises(InputError):
        OnnxClassifier(model).predictions(tmp_path / "only")


def test_predicting_loads_no_torch(model: Path, run: Run) -> None:
    code = (
        "import sys, captune.cli\n"
        f"assert captune.cli.main(['predict', {str(model)!r}, {str(run.images.paths[0])!r}]) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'torch was loaded'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("path,label,confidence\n")


def test_pixels_are_the_same_with_and_without_torch() -> None:
    own = Preprocessing(8, 8, "bicubic", (0.48, 0.45, 0.40), (0.26, 0.27, 0.28))
    views = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    assert np.array_equal(own.standardize(views), own.normalize(views).numpy())


def test_a_model_that_answers_differently_is_not_written(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = onnx_export._WholeModel

    def slightly_wrong(classifier: Any) -> Any:
        model = honest(classifier)
        model.class_vectors = model.class_vectors.roll(1, dims=0)
        return model

    monkeypatch.setattr(onnx_export, "_WholeModel", slightly_wrong)
    with pytest.raises(CaptuneError):
        export(run_folder, "onnx", tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_images_that_moved_are_asked_for(clip: HuggingFace, tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "run", clip)
    (tmp_path / "a" / "photos").rename(tmp_path / "moved")
    with pytest.raises(InputError, match="folder of images as images"):
        export(tmp_path / "a" / "run", "onnx", tmp_path / "model.onnx")
    export(tmp_path / "a" / "run", "onnx", tmp_path / "model.onnx", images=str(tmp_path / "moved"), n_checked=3)
    assert OnnxClassifier(tmp_path / "model.onnx").card.check["n_images"] == 3


def test_a_model_that_onnx_cannot_hold_is_refused(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    make_run(tmp_path / "run", HuggingFace.load(str(model_folder("siglip_flexible"))))
    with pytest.raises(InputError, match="'frozen'") as caught:
        export(tmp_path / "run", "onnx", tmp_path / "model.onnx")
    assert "captune predict" in str(caught.value)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_extra_is_named(
    package: str, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'captune\[onnx\]'"):
        export(run_folder, "onnx", tmp_path / "model.onnx")


def test_reading_an_export_names_the_missing_extra(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'captune\[onnx\]'"):
        captune.load(model)


def damaged(model: Path, target: Path, metadata: dict[str, str]) -> Path:
    loaded = onnx.load(model)
    del loaded.metadata_props[:]
    onnx.helper.set_model_props(loaded, metadata)
    onnx.save(loaded, target)
    return target


def test_files_that_are_not_ours_are_clear_errors(model: Path, tmp_path: Path) -> None:
    card = json.loads(OnnxClassifier(model).session.get_modelmeta().custom_metadata_map[KEY])
    for metadata, value in (
        ({}, KEY),
        ({KEY: "{"}, "x.onnx"),
        ({KEY: json.dumps(add_digest({**card, "names": 3}))}, "names"),
        ({KEY: json.dumps({**card, "names": [NAMES[1], NAMES[0], *NAMES[2:]]})}, "its own digest"),
        ({KEY: "[" * 200_000}, "nested"),
        ({KEY: json.dumps({**card, "version": 9})}, "9"),
        ({KEY: json.dumps([1])}, "x.onnx"),
        ({KEY: json.dumps(add_digest({**card, "names": [*NAMES, "one more"]}))}, f"{len(NAMES) + 1} columns"),
    ):
        with pytest.raises(RunFolderError, match=value):
            captune.load(damaged(model, tmp_path / "x.onnx", metadata))
    for wrong in ({"image_size": 10**9}, {"resize": 10**9}, {"mean": [math.nan, 0, 0]}, {"std": [0, 1, 1]}):
        content = add_digest({**card, "preprocessing": {**card["preprocessing"], **wrong}})
        with pytest.raises(ModelError, match="Expected"):
            captune.load(damaged(model, tmp_path / "x.onnx", {KEY: json.dumps(content)}))
    (tmp_path / "half.onnx").write_bytes(model.read_bytes()[:1000])
    for name in ("half.onnx", "none.onnx"):
        with pytest.raises(RunFolderError, match=name):
            captune.load(tmp_path / name)


def test_a_model_with_weights_that_are_not_finite_is_an_error(model: Path, run_folder: Path, tmp_path: Path) -> None:
    loaded = onnx.load(model)
    for tensor in loaded.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = np.full_like(onnx.numpy_helper.to_array(tensor), np.nan)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(loaded, tmp_path / "x.onnx")
    with pytest.raises(ModelError, match="not finite"):
        captune.load(tmp_path / "x.onnx").predict(np.zeros((1, 40, 40, 3), dtype=np.uint8))
