"""Neighbors that agree, and the ends of what may be asked of them."""

from __future__ import annotations

import numpy as np
import pytest

from captune.core.arrays import softmax_rows, unit_rows
from captune.core.errors import InputError
from captune.labeling import neighborhood
from captune.labeling.neighborhood import balance, neighbor_consensus, neighbor_graph, propagate


def two_clusters(n_each: int = 20, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    centers = np.repeat(np.eye(2, 8), n_each, axis=0)
    return unit_rows((centers + 0.05 * generator.normal(size=(2 * n_each, 8))).astype(np.float32))


def test_neighbors_outvote_a_wrong_image() -> None:
    embeddings = two_clusters()
    probabilities = np.repeat(np.array([[0.8, 0.2], [0.2, 0.8]], dtype=np.float32), 20, axis=0)
    probabilities[3] = [0.1, 0.9]  # of the first cluster, but taken for the second class
    found = neighbor_consensus(probabilities, neighbor_graph(embeddings, 5))
    assert found[3].argmax() == 0
    assert (found.argmax(axis=1) == np.repeat([0, 1], 20)).all()
    assert np.allclose(found.sum(axis=1), 1, atol=1e-5)


def test_chunks_do_not_change_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = two_clusters()
    whole = neighbor_graph(embeddings, 4)
    monkeypatch.setattr(neighborhood, "BYTES_AT_ONCE", 7 * 4 * len(embeddings))
    chunked = neighbor_graph(embeddings, 4)
    assert np.allclose(np.sort(whole.weights), np.sort(chunked.weights), atol=1e-6)
    assert (np.sort(whole.neighbors) == np.sort(chunked.neighbors)).all()


@pytest.mark.parametrize("n_images", [1, 2, 3])
def test_fewer_images_than_neighbors(n_images: int) -> None:
    embeddings = two_clusters(2)[:n_images]
    probabilities = softmax_rows(np.arange(2 * n_images, dtype=np.float32).reshape(n_images, 2))
    found = propagate(probabilities, neighbor_graph(embeddings, 10))
    assert found.shape == (n_images, 2)
    assert np.isfinite(found).all()


def test_balance_evens_out_as_strongly_as_it_is_told() -> None:
    generator = np.random.default_rng(0)
    probabilities = softmax_rows(generator.normal(size=(300, 3)).astype(np.float32) + np.float32([2, 0, 0]))
    shares = [balance(probabilities, strength, rounds=30).sum(axis=0).max() / 300 for strength in (0.0, 0.5, 1.0)]
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] == pytest.approx(1 / 3, abs=0.01)
    assert balance(probabilities, 0.0).tobytes() == probabilities.tobytes()


def test_a_class_that_nothing_fits_stays_finite() -> None:
    probabilities = np.zeros((5, 3), dtype=np.float32)
    probabilities[:, 0] = 1
    found = balance(probabilities, 1.0)
    assert np.isfinite(found).all()
    assert found[:, 1:].max() == 0


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(InputError, match="n_neighbors: expected at least 1, got 0"):
        neighbor_graph(two_clusters(), 0)
    with pytest.raises(InputError, match=r"strength: expected 0 to 1, got 2\.0"):
        balance(np.full((2, 2), 0.5, dtype=np.float32), 2.0)
