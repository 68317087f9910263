"""Embedding and scoring against literal loops, skipped images, and results that do not depend on workers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from toys import WIDTH, ToyBackbone, write_images

from captune.core import runtime
from captune.core.errors import InputError
from captune.data.images import find_images
from captune.data.views import weak_view
from captune.data.vocabulary import Vocabulary
from captune.embeddings import embed as embed_module
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_classes, embed_images, embed_texts, score
from captune.embeddings.predictions import Predictions


def embed(folder: Path, cache: Path, workers: int = 0, batch_size: int = 4) -> embed_module.EmbeddedImages:
    engine = runtime.start(workers=workers, quiet=True)
    return embed_images(ToyBackbone(), find_images(folder), EmbeddingCache(cache), engine, batch_size)


def test_embeddings_are_those_of_one_image_at_a_time(tmp_path: Path) -> None:
    photos, backbone = write_images(tmp_path / "photos", 6), ToyBackbone()
    found = embed(photos, tmp_path / "cache")
    for position, path in enumerate(find_images(photos).paths):
        pixels = backbone.preprocessing.normalize(
            weak_view(Image.open(path).convert("RGB"), backbone.preprocessing)[None]
        )
        assert np.allclose(found.vectors[position], backbone.encode_image(pixels)[0], atol=1e-5)


def test_unreadable_images_are_skipped(tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos", 5)
    (photos / "001.png").write_bytes(b"not an image")
    (photos / "004.png").write_bytes(b"")
    found = embed(photos, tmp_path / "cache", batch_size=2)
    assert found.image_index.tolist() == [0, 2, 3]
    assert found.vectors.shape == (3, WIDTH)
    assert found.skipped == {1: "not an image of a known format", 4: "the file is empty"}


def test_nothing_readable_is_an_empty_answer(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"x")
    found = embed(tmp_path / "photos", tmp_path / "cache")
    assert found.vectors.shape == (0, WIDTH)


def test_workers_do_not_change_a_bit(tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos", 9)
    alone = embed(photos, tmp_path / "1", workers=0)
    together = embed(photos, tmp_path / "2", workers=2)
    assert alone.vectors.tobytes() == together.vectors.tobytes()


def test_texts_are_embedded_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, texts = ToyBackbone(), [f"text {i}" for i in range(7)]
    whole = embed_texts(backbone, texts)
    monkeypatch.setattr(embed_module, "TEXTS_AT_ONCE", 3)
    assert np.allclose(embed_texts(backbone, texts), whole, atol=1e-6)
    assert whole.shape == (7, WIDTH)


def test_a_class_is_the_mean_of_its_sentences() -> None:
    backbone = ToyBackbone()
    vocabulary = Vocabulary(("cat", "dog"), ("a {}", "the {}")).with_descriptions({1: ["barks", "wags", "bites"]})
    got = embed_classes(backbone, vocabulary)
    for row, sentences in enumerate((("a cat", "the cat"), ("barks", "wags", "bites"))):
        with torch.no_grad():
            vectors = [backbone.encode_text(backbone.tokenize([sentence]))[0].numpy() for sentence in sentences]
        mean = np.mean(vectors, axis=0)
        assert np.allclose(got[row], mean / np.linalg.norm(mean), atol=1e-5)


def test_scores_are_the_softmax_of_scaled_cosines() -> None:
    images = np.array([[1.0, 0.0], [0.6, 0.8]], dtype=np.float32)
    classes = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    got = score(images, classes, logit_scale=2.0)
    for i, image in enumerate(images):
        weights = [math.exp(2.0 * float(image @ row)) for row in classes]
        assert np.allclose(got[i], [weight / sum(weights) for weight in weights])


def test_predictions_are_checked_and_read() -> None:
    predictions = Predictions(np.array([4, 7]), np.array([[0.2, 0.8], [0.6, 0.4]], dtype=np.float32))
    assert predictions.labels.tolist() == [1, 0]
    assert np.allclose(predictions.confidence, [0.8, 0.6])
    with pytest.raises(InputError, match=r"\(1, classes\)"):
        Predictions(np.array([4]), np.zeros((2, 2), dtype=np.float32))
