"""The saved classifier: the same answers after loading, and a clear error for every way it can be wrong."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import tiny_clip
from PIL import Image
from safetensors.numpy import load_file, save_file
from toys import ToyBackbone, write_images

import captune
from captune.backbones.base import Backbone, load_backbone
from captune.backbones.hf import HuggingFace
from captune.backbones.precomputed import Precomputed
from captune.core import runtime
from captune.core.errors import InputError, ModelError, RunFolderError
from captune.core.files import add_digest, digest
from captune.data.images import find_images
from captune.data.views import Preprocessing
from captune.data.vocabulary import Vocabulary
from captune.embeddings.cache import EmbeddingCache
from captune.results import classifier as module
from captune.results import image_classifier
from captune.results.classifier import CARD, WEIGHTS, Classifier
from captune.results.image_classifier import SkippedWarning, UnknownLabelWarning, top_k
from captune.tuners.feature_adapter import FeatureAdapter
from captune.tuners.frozen import Frozen

NAMES = ("cat", "dog", "red car")
PREPROCESSING = Preprocessing(32, 32, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> HuggingFace:
    return HuggingFace.load(str(tiny_clip(tmp_path_factory.mktemp("clip"))))


@pytest.fixture
def classifier(clip: HuggingFace) -> Classifier:
    vocabulary = Vocabulary(NAMES, ("a photo of a {}",), {1: ("a striped dog", "the dog")})
    return Classifier.from_tuner(Frozen(clip, vocabulary))


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    return sorted(write_images(tmp_path / "photos", 3, side=40).iterdir())


def test_paths_images_and_arrays_get_the_same_answers(classifier: Classifier, photos: list[Path]) -> None:
    expected = classifier.predict_proba(photos)
    assert expected.shape == (3, 3)
    assert np.allclose(expected.sum(axis=1), 1, atol=1e-5)
    opened = [Image.open(path) for path in photos]
    arrays = [np.asarray(image) for image in opened]
    for sources in ([str(path) for path in photos], opened, arrays, np.stack(arrays), iter(arrays)):
        assert np.array_equal(classifier.predict_proba(sources), expected)
    for one in (photos[1], str(photos[1]), opened[1], arrays[1]):
        assert np.allclose(classifier.predict_proba(one), expected[1:2], atol=1e-6)
    assert classifier.predict(photos) == [NAMES[label] for label in expected.argmax(axis=1)]
    assert classifier.predict([]) == []


def test_batches_do_not_change_the_answer(
    classifier: Classifier, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = classifier.predict_proba(photos)
    monkeypatch.setattr(image_classifier, "BATCH", 2)
    assert np.allclose(classifier.predict_proba(photos), expected, atol=1e-6)


def test_a_wrong_image_is_named(classifier: Classifier, photos: list[Path]) -> None:
    with pytest.warns(SkippedWarning, match=r"gone\.jpg"):
        assert classifier.predict([photos[0], "gone.jpg"]) == [*classifier.predict(photos[:1]), None]
    with pytest.raises(InputError):
        classifier.predict([None])


def test_a_loaded_classifier_gives_the_same_bits(classifier: Classifier, photos: list[Path], tmp_path: Path) -> None:
    classifier.save(tmp_path / "c")
    loaded = Classifier.load(tmp_path / "c")
    assert loaded.predict_proba(photos).tobytes() == classifier.predict_proba(photos).tobytes()
    assert loaded.vocabulary == classifier.vocabulary
    assert loaded.names == NAMES


def test_a_relative_model_folder_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos: list[Path]
) -> None:
    tiny_clip(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    made = Classifier.from_tuner(Frozen(HuggingFace.load("model"), Vocabulary(NAMES)))
    made.save(tmp_path / "c")
    monkeypatch.chdir("/")
    assert Classifier.load(tmp_path / "c").predict(photos) == made.predict(photos)


def test_a_folder_that_is_called_like_an_embedded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "patterns").mkdir()
    monkeypatch.chdir(tmp_path)
    made = Classifier.from_tuner(Frozen(load_backbone("embedded:patterns"), Vocabulary(NAMES)))
    made.save("c")
    assert json.loads(Path("c", CARD).read_text())["backbone"] == "embedded:patterns"
    assert Classifier.load("c").names == NAMES


def test_a_folder_that_is_called_like_a_model_in_memory() -> None:
    toy_backbone = ToyBackbone()
    for identifier, portable in (("memory:tests", "memory:tests"), ("hf:tests", f"hf:{Path('tests').resolve()}")):
        toy_backbone.identifier = identifier
        assert Backbone.portable_id(toy_backbone) == portable


def test_numbers_that_are_not_finite_are_an_error(toy: Classifier, photos: list[Path], tmp_path: Path) -> None:
    images, engine = find_images(tmp_path / "photos"), runtime.start(workers=0, quiet=True)
    weights = toy.backbone.weights["image"]  # type: ignore[attr-defined]
    for value in (math.nan, math.inf, 0.0):
        with torch.no_grad():
            weights.bias.fill_(value)
            if value == 0.0:
                weights.weight.fill_(0.0)
        with pytest.raises(ModelError, match="not finite or zero"):
            toy.compute(images, EmbeddingCache(tmp_path / "cache"), engine)
        assert not list((tmp_path / "cache").rglob("*.safetensors"))
        if value != 0.0:
            with pytest.raises(ModelError, match="probabilities that are not finite"):
                toy.predict(photos)


def test_embeddings_and_images_are_scored_alike(classifier: Classifier, photos: list[Path]) -> None:
    from captune.data.views import weak_view

    views = np.stack([weak_view(Image.open(path), classifier.backbone.preprocessing) for path in photos])
    vectors = classifier.backbone.encode_image(classifier.backbone.preprocessing.normalize(views)).numpy()
    assert np.allclose(classifier.score_embeddings(vectors), classifier.predict_proba(photos), atol=1e-6)
    assert classifier.score_embeddings(vectors[:0]).shape == (0, 3)


def test_cached_embeddings_do_not_fit_a_changed_encoder(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(classifier.tuner), "edits_images", True)
    with pytest.raises(InputError, match="'frozen'"):
        classifier.score_embeddings(np.zeros((1, 24), dtype=np.float32))


def edit_card(folder: Path, **changes: Any) -> None:
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps(add_digest({**card, **changes})))


def test_a_classifier_of_an_older_version_may_name_a_setting_that_is_gone(clip: HuggingFace, tmp_path: Path) -> None:
    tuner = FeatureAdapter(clip, Vocabulary(NAMES))
    Classifier.from_tuner(tuner).save(tmp_path)
    rows = np.eye(2, clip.embed_dim, dtype=np.float32)
    before = Classifier.load(tmp_path, clip).score_embeddings(rows)
    edit_card(tmp_path, tuner_settings={**asdict(tuner.settings), "start_share": 0.0})
    assert np.array_equal(Classifier.load(tmp_path, clip).score_embeddings(rows), before)
    edit_card(tmp_path, tuner_settings={**asdict(tuner.settings), "start_share": 0.5})
    with pytest.raises((InputError, RunFolderError)):
        Classifier.load(tmp_path, clip)


def edit_without_seal(folder: Path, **changes: object) -> None:
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps({**card, **changes}))


def vouch(folder: Path) -> None:
    edit_card(folder, weights_digest=digest((folder / WEIGHTS).read_bytes()))


def rewrite_weights(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    vouch(folder)


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).write_bytes(content)


def replace_by_noise(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"noise")
    vouch(folder)


def make_a_pipe(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def link_to_a_device(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("/dev/zero")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped byte": (flip_a_byte, WEIGHTS),
    "no card": (lambda folder: (folder / CARD).unlink(), CARD),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS),
    "card is no JSON": (lambda folder: (folder / CARD).write_text("{"), ""),
    "card is a list": (lambda folder: (folder / CARD).write_text("[]"), module.FORMAT),
    "other format": (lambda folder: edit_card(folder, format="x"), module.FORMAT),
    "newer version": (lambda folder: edit_card(folder, version=2), "2"),
    "no version": (lambda folder: edit_card(folder, version=None), "None"),
    "names are numbers": (lambda folder: edit_card(folder, names=[1, 2, 3]), "names"),
    "two names swapped": (lambda folder: edit_without_seal(folder, names=["dog", "cat", "red car"]), "its own digest"),
    "other template": (lambda folder: edit_without_seal(folder, templates=["{}"]), "its own digest"),
    "other preprocessing": (
        lambda folder: edit_card(folder, preprocessing={**asdict(PREPROCESSING), "mean": (0.0, 0.0, 0.0)}),
        "preprocessing of 'hf:",
    ),
    "one name less": (lambda folder: edit_card(folder, names=NAMES[:2]), r"\(3, 24\).*\(2, 24\)"),
    "equal names": (lambda folder: edit_card(folder, names=["a", "a", "b"]), "'a'"),
    "unknown setting": (lambda folder: edit_card(folder, tuner_settings={"x": 1}), "'x'"),
    "other weights": (lambda folder: edit_card(folder, backbone_fingerprint="0"), "hf:"),
    "no class vectors": (lambda f: rewrite_weights(f, lambda t: t.pop("class_vectors") is None), "class_vectors"),
    "NaN": (lambda f: rewrite_weights(f, lambda t: t["class_vectors"].fill(np.nan)), "finite"),
    "zero": (lambda f: rewrite_weights(f, lambda t: t["class_vectors"].fill(0)), "zero"),
    "integers": (
        lambda f: rewrite_weights(f, lambda t: t.update(class_vectors=t["class_vectors"].astype(np.int32) + 1)),
        "int32",
    ),
    "a pipe": (make_a_pipe, "pipe"),
    "a link to a device": (link_to_a_device, "device"),
    "surplus": (lambda f: rewrite_weights(f, lambda t: t.update(more=np.zeros(1))), "more"),
    "noise": (replace_by_noise, ""),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_or_foreign_classifier_is_one_clear_error(
    classifier: Classifier, clip: HuggingFace, tmp_path: Path, kind: str
) -> None:
    damage, value = DAMAGE[kind]
    classifier.save(tmp_path)
    Classifier.load(tmp_path, clip)
    damage(tmp_path)
    with pytest.raises(RunFolderError, match=f"(?s){value}"):
        Classifier.load(tmp_path, clip)


def test_texts_that_are_missing_in_a_changed_file_are_told(tmp_path: Path) -> None:
    texts = captune.ClassTexts(NAMES, np.eye(3, dtype=np.float32))
    Classifier.from_tuner(Frozen(Precomputed(texts), Vocabulary(NAMES, ("{}",)))).save(tmp_path)
    assert Classifier.load(tmp_path).names == NAMES
    rewrite_weights(tmp_path, lambda tensors: tensors.pop("backbone.texts") is None)
    with pytest.raises(RunFolderError, match="texts"):
        Classifier.load(tmp_path)


def test_weights_of_gigabytes_are_not_read(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier.save(tmp_path)
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    with pytest.raises(RunFolderError, match="100 bytes"):
        Classifier.load(tmp_path)


def test_labels_that_are_no_classes_are_left_out_and_the_nearest_name_is_told(
    classifier: Classifier, photos: list[Path]
) -> None:
    right = [str(label) for label in classifier.predict(photos)]
    with pytest.warns(UnknownLabelWarning, match="Did you mean 'red car'"):
        assert classifier.evaluate(photos, [*right[:2], "redcar"]).n_images == 2
    assert classifier.evaluate(photos, [*right[:2], "redcar"], rename={"redcar": right[2]}).accuracy == 1.0
    with pytest.raises(InputError, match="redcar"):
        classifier.evaluate(photos, ["redcar", None, None])


def test_another_backbone_is_refused(classifier: Classifier, tmp_path: Path) -> None:
    classifier.save(tmp_path)
    with pytest.raises(RunFolderError):
        Classifier.load(tmp_path, ToyBackbone())


def test_the_best_classes_come_first() -> None:
    probabilities = np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]], dtype=np.float32)
    assert top_k(probabilities, 2).tolist() == [[1, 2], [0, 2]]
    assert top_k(probabilities, 9).shape == (2, 3)


@pytest.fixture
def toy() -> Classifier:
    return Classifier.from_tuner(Frozen(ToyBackbone(), Vocabulary(NAMES)))


def test_streaming_agrees_with_the_cache(toy: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_images(tmp_path / "photos", 7)
    (photos / "003.png").write_bytes(b"")
    images, engine = find_images(photos), runtime.start(workers=0, quiet=True)
    cached = toy.compute(images, EmbeddingCache(tmp_path / "1"), engine, 3)
    monkeypatch.setattr(Frozen, "edits_images", True)
    streamed = toy.compute(images, EmbeddingCache(tmp_path / "2"), engine, 3)
    assert np.array_equal(cached.image_index, streamed.image_index)
    assert np.allclose(cached.probabilities, streamed.probabilities, atol=1e-6)
    assert cached.skipped == streamed.skipped == {3: "the file is empty"}
    assert not (tmp_path / "2").exists()


@pytest.mark.parametrize("edits", [False, True])
def test_nothing_usable_is_one_clear_error(
    toy: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edits: bool
) -> None:
    monkeypatch.setattr(Frozen, "edits_images", edits)
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"a\.png"):
        toy.compute(find_images(tmp_path), EmbeddingCache(tmp_path / "c"), runtime.start(workers=0, quiet=True))
