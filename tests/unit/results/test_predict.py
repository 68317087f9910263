"""Whole collections: the streamed way gives what the cached way gives, and nothing usable is one clear error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toys import ToyBackbone, write_images

from captune.core import runtime
from captune.core.errors import InputError
from captune.data.images import find_images
from captune.data.vocabulary import Vocabulary
from captune.embeddings.cache import EmbeddingCache
from captune.results.classifier import Classifier
from captune.results.predict import predict_collection
from captune.tuners.frozen import Frozen


@pytest.fixture
def classifier() -> Classifier:
    return Classifier.from_tuner(Frozen(ToyBackbone(), Vocabulary(("cat", "dog", "bird"))))


def test_streaming_agrees_with_the_cache(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = write_images(tmp_path / "photos", 7)
    (photos / "003.png").write_bytes(b"")
    images, engine = find_images(photos), runtime.start(workers=0, quiet=True)
    cached, aside = predict_collection(classifier, images, EmbeddingCache(tmp_path / "1"), engine, 3)
    monkeypatch.setattr(Frozen, "edits_images", True)
    streamed, aside_too = predict_collection(classifier, images, EmbeddingCache(tmp_path / "2"), engine, 3)
    assert np.array_equal(cached.image_index, streamed.image_index)
    assert np.allclose(cached.probabilities, streamed.probabilities, atol=1e-6)
    assert aside == aside_too == {3: "the file is empty"}
    assert not (tmp_path / "2").exists()


@pytest.mark.parametrize("edits", [False, True])
def test_nothing_usable_is_one_clear_error(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edits: bool
) -> None:
    monkeypatch.setattr(Frozen, "edits_images", edits)
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"None of the 1 images.*\n  - a.png: not an image"):
        predict_collection(
            classifier, find_images(tmp_path), EmbeddingCache(tmp_path / "c"), runtime.start(workers=0, quiet=True)
        )
