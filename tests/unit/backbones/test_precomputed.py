"""Class texts that are embedded already, alone or beside an image encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from toys import SIDE, WIDTH, ToyBackbone

from captune.backbones.base import load_backbone, wrap
from captune.backbones.precomputed import Precomputed
from captune.core.errors import InputError, ModelError
from captune.data.precomputed import ClassTexts, Embeddings
from captune.data.vocabulary import Vocabulary
from captune.embeddings.embed import embed_classes

NAMES = ("cat", "dog")
VECTORS = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)
PIXELS = torch.zeros(1, 3, SIDE, SIDE)


@pytest.fixture
def texts() -> ClassTexts:
    return ClassTexts(NAMES, VECTORS, logit_scale=20)


def test_classes_are_the_given_texts(texts: ClassTexts) -> None:
    backbone = Precomputed(texts)
    expected = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    np.testing.assert_allclose(embed_classes(backbone, Vocabulary(NAMES, ("{}",))), expected, rtol=1e-6)
    assert (backbone.embed_dim, backbone.logit_scale, backbone.has_image_encoder) == (WIDTH, 20, False)
    assert not backbone.prompted_sides()


def test_what_is_not_in_the_table_cannot_be_embedded(texts: ClassTexts) -> None:
    with pytest.raises(ModelError, match="'a photo of a cat'"):
        Precomputed(texts).tokenize(["cat", "a photo of a cat"])
    with pytest.raises(ModelError, match="no image encoder"):
        Precomputed(texts).encode_image(PIXELS)


def test_images_go_through_the_encoder_beside(texts: ClassTexts) -> None:
    encoder = ToyBackbone()
    assert torch.equal(Precomputed(texts, encoder).encode_image(PIXELS), encoder.encode_image(PIXELS))
    with pytest.raises(ModelError, match=r"width 5.*width 12"):
        Precomputed(ClassTexts(NAMES, VECTORS[:, :5]), encoder)


def test_what_was_saved_is_restored_with_the_same_fingerprint(texts: ClassTexts) -> None:
    backbone = Precomputed(texts)
    restored = Precomputed.restore("", NAMES, backbone.state())
    assert restored.fingerprint() == backbone.fingerprint()
    assert restored.logit_scale == backbone.logit_scale
    assert Precomputed(ClassTexts(NAMES, -VECTORS)).fingerprint() != backbone.fingerprint()


def test_a_file_of_texts_is_a_backbone(tmp_path: Path) -> None:
    np.savez(tmp_path / "texts.npz", names=NAMES, texts=VECTORS, logit_scale=20)
    backbone = load_backbone(f"precomputed:{tmp_path / 'texts.npz'}")
    assert backbone.identifier == f"precomputed:{tmp_path / 'texts.npz'}"
    assert backbone.tokenize(["dog"]).ids.tolist() == [[1]]


def test_float16_lengths_are_made_one_and_not_reported() -> None:
    half = (VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)).astype(np.float16)
    images = Embeddings(half)
    np.testing.assert_allclose(np.linalg.norm(images.vectors, axis=1), 1, atol=2e-5)
    assert not images.was_scaled
    assert Embeddings(3 * half).was_scaled


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 damaged", b"\x93NUMPY"])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet"])
def test_a_damaged_file_is_one_clear_error(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"vectors{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a readable"):
        Embeddings.from_file(path)


def test_python_objects_in_a_file_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "texts.npz", names=np.array(["cat", "dog"], dtype=object), texts=VECTORS)
    with pytest.raises(InputError, match=r"'names'.*dtype=str"):
        ClassTexts.from_file(tmp_path / "texts.npz")


def test_only_models_that_are_understood_are_wrapped() -> None:
    toy = ToyBackbone()
    assert wrap(toy) is toy
    with pytest.raises(ModelError, match="Linear"):
        wrap(torch.nn.Linear(2, 2))
    toy.weights.half()
    with pytest.raises(ModelError, match="single precision"):
        toy.freeze()
