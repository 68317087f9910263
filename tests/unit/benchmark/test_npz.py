"""Embeddings as a dataset: what a file must have, and what is said of one that cannot be used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from captune.benchmark.datasets.base import open_dataset
from captune.core.errors import InputError
from captune.data.precomputed import Embeddings


def arrays(**changes: Any) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    made = {
        "train_images": generator.normal(size=(6, 4)).astype(np.float16),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": generator.normal(size=(3, 4)).astype(np.float16),
        "test_labels": np.array([2, 1, 0], dtype=np.int16),
        "texts": generator.normal(size=(3, 4)),
        "names": np.array(["cat", "dog", "owl"]),
        "logit_scale": np.array(50.0),
        **changes,
    }
    return {key: value for key, value in made.items() if value is not None}


def write(root: Path, **changes: Any) -> Path:
    (root / "clip").mkdir(exist_ok=True)
    np.savez(root / "clip" / "pets.npz", **arrays(**changes))
    return root


def test_a_file_is_a_dataset(tmp_path: Path) -> None:
    reader = open_dataset("npz:clip/pets.npz")
    assert not reader.is_found(tmp_path)
    data = reader.load(write(tmp_path))
    assert reader.is_found(tmp_path)
    assert data.names == ("cat", "dog", "owl")
    assert isinstance(data.pool, Embeddings)
    assert (len(data.pool), len(data.test)) == (6, 3)
    assert np.allclose(np.linalg.norm(data.pool.vectors, axis=1), 1, atol=1e-5)
    assert data.test_labels.tolist() == [2, 1, 0]
    assert data.texts is not None
    assert data.texts.logit_scale == 50.0
    again = reader.load(write(tmp_path)).fingerprint
    assert data.fingerprint == again
    others = (
        {"logit_scale": np.array(51.0)},
        {"test_labels": np.array([2, 1, 1])},
        {"names": np.array(["cat", "dog", "elk"])},
        {"texts": np.eye(3, 4)},
        {"train_images": np.eye(6, 4) + 0.1},
    )
    for changes in others:
        assert reader.load(write(tmp_path, **changes)).fingerprint != again
    assert open_dataset("npz:clip/pets.npz").load(write(tmp_path, logit_scale=None)).texts.logit_scale == 100.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"train_labels": None}, "No 'train_labels' in"),
        ({"names": None}, "No class names in"),
        ({"texts": None}, "class texts"),
        ({"train_labels": np.array([0, 1, 2])}, "pool has 6 images and labels of shape (3,)"),
        ({"test_labels": np.array([0, 1, 3])}, "expected one label from 0 to 2"),
        ({"test_labels": np.array(["cat", "dog", "owl"])}, "'test_labels' in"),
        ({"test_labels": np.array([0.0, 1.0, 2.0])}, "expected class ids: positions in 'names'"),
        ({"test_images": np.ones((3, 5))}, "different widths: [4, 5]"),
        ({"train_images": np.full((6, 4), np.nan)}, "not finite"),
        ({"names": np.array(["cat", "dog"])}, "Expected one text embedding per class, got 3 for 2 names"),
        ({"names": np.array(["cat", "dog", None])}, "cannot be read"),
        ({"logit_scale": np.array(-1.0)}, "logit_scale is -1.0"),
    ],
)
def test_a_bad_file_is_an_answer(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=re.escape(problem)):
        open_dataset("npz:clip/pets.npz").load(write(tmp_path, **changes))


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 damaged"])
def test_a_damaged_file_is_an_answer(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz' is not a readable \.npz file"):
        open_dataset("npz:x.npz").load(tmp_path)
