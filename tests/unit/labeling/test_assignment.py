"""Selection in parts finds what selection of everything finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from captune.core import arrays
from captune.core.arrays import Floats, unit_rows
from captune.core.errors import InputError
from captune.embeddings.embed import score
from captune.embeddings.similarity import nearest_neighbors
from captune.labeling.pseudo_labels import PseudoLabels
from captune.labeling.selection import balanced_pools, first_labels, top_k_per_class


@pytest.fixture
def small_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every array a large one, worked on in parts of a few rows."""
    monkeypatch.setenv("CAPTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(arrays, "LARGE_BYTES", 0)
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 128)


def same_labels(one: PseudoLabels, other: PseudoLabels) -> bool:
    return (
        np.array_equal(one.image_index, other.image_index)
        and np.array_equal(one.labels, other.labels)
        and np.allclose(one.confidence, other.confidence, atol=1e-6)
    )


def embeddings(n_images: int, n_classes: int) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(3)
    return (
        unit_rows(generator.normal(size=(n_images, 8)).astype(np.float32)),
        unit_rows(generator.normal(size=(n_classes, 8)).astype(np.float32)),
    )


def everything(images: Floats, texts: Floats) -> list[PseudoLabels]:
    probabilities = score(images, texts, 5.0)
    described = {1: texts[2]}
    return [
        first_labels(images, texts, 5.0, k=3),
        first_labels(images, texts, 5.0, described, k=3, allowed=[0, 1, 3]),
        first_labels(images, texts, 5.0, k=100),  # more than there are: nothing to leave out
        top_k_per_class(probabilities, 4),
        top_k_per_class(probabilities, 4, allowed=[1, 2], predicted_only=True),
        top_k_per_class(probabilities, 60),
        balanced_pools(probabilities, probabilities > 0.2, 5),
    ]


def test_selection_in_parts_equals_selection_at_once(request: pytest.FixtureRequest) -> None:
    images, texts = embeddings(200, 4)
    at_once = everything(images, texts)
    neighbors = nearest_neighbors(images, np.arange(0, 200, 7), 5)
    request.getfixturevalue("small_memory")
    in_parts = everything(images, texts)
    assert all(same_labels(one, other) for one, other in zip(at_once, in_parts, strict=True))
    found = nearest_neighbors(images, np.arange(0, 200, 7), 5)
    assert np.array_equal(np.sort(found, axis=1), np.sort(neighbors, axis=1))


@pytest.mark.usefixtures("small_memory")
def test_neighbors_are_found_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captune.embeddings.similarity.IMAGES_AT_ONCE", 7)
    images, _ = embeddings(60, 2)
    cosines = images @ images.T
    np.fill_diagonal(cosines, -np.inf)
    expected = np.sort(np.argsort(-cosines, axis=1)[:, :4], axis=1)
    assert np.array_equal(np.sort(nearest_neighbors(images, np.arange(60), 4), axis=1), expected)


@pytest.mark.usefixtures("small_memory")
def test_scores_that_are_no_numbers_are_noticed_in_any_part() -> None:
    scores = np.zeros((100, 3), dtype=np.float32)
    scores[99, 2] = np.nan
    with pytest.raises(InputError, match="nan"):
        top_k_per_class(scores, 1)
