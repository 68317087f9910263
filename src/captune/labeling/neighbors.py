"""The nearest images of an image, by the cosine of their embeddings."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Floats, Ints
from captune.core.scratch import is_large

BYTES_AT_ONCE = 1 << 26
IMAGES_AT_ONCE = 16_384


def nearest_neighbors(embeddings: Floats, queries: Ints, n_neighbors: int) -> Ints:
    """Return the nearest images of each queried image by cosine, excluding itself, in no particular order.

    The result is `(queries, n_neighbors)`, with fewer columns if there are fewer other images. Embeddings are unit
    vectors; cosines are computed in blocks, so memory does not grow with the number of pairs.
    """
    n_images = len(embeddings)
    n_kept = min(n_neighbors, n_images - 1)
    if n_kept and is_large(n_images, embeddings.shape[1]):
        step = max(1, BYTES_AT_ONCE // (4 * IMAGES_AT_ONCE))
        parts = [_search_blocks(embeddings, queries[i : i + step], n_kept) for i in range(0, len(queries), step)]
        return np.concatenate([np.empty((0, n_kept), dtype=np.int64), *parts])
    found = np.zeros((len(queries), n_kept), dtype=np.int64)
    step = max(1, BYTES_AT_ONCE // (4 * max(1, n_images)))
    for start in range(0, len(queries) if n_kept else 0, step):
        rows = queries[start : start + step]
        cosines = embeddings[rows] @ embeddings.T
        cosines[np.arange(len(rows)), rows] = -np.inf  # an image is not its own neighbor
        found[start : start + step] = np.argpartition(-cosines, n_kept - 1, axis=1)[:, :n_kept]
    return found


def _search_blocks(embeddings: Floats, queries: Ints, n_kept: int) -> Ints:
    """Return the nearest images of some queries in one pass over blocks of all images."""
    wanted = embeddings[queries]
    best = np.full((len(queries), n_kept), -np.inf, dtype=np.float32)
    found = np.zeros((len(queries), n_kept), dtype=np.int64)
    for start in range(0, len(embeddings), IMAGES_AT_ONCE):
        cosines = wanted @ embeddings[start : start + IMAGES_AT_ONCE].T
        is_here = (queries >= start) & (queries < start + cosines.shape[1])
        cosines[np.flatnonzero(is_here), queries[is_here] - start] = -np.inf
        both = np.concatenate([best, cosines], axis=1)
        images = np.concatenate(
            [found, np.broadcast_to(np.arange(start, start + cosines.shape[1]), cosines.shape)], axis=1
        )
        top = np.argpartition(-both, n_kept - 1, axis=1)[:, :n_kept]
        best, found = np.take_along_axis(both, top, axis=1), np.take_along_axis(images, top, axis=1)
    return found


def neighbor_agreement(predicted: Ints, queries: Ints, neighbors: Ints) -> float:
    """Return how often neighbors share their predicted class, from 0 (chance) to 1 (always).

    Corrected for chance, because predicting one class for all images would agree perfectly.
    """
    shares = np.bincount(predicted) / len(predicted)
    by_chance = float(np.sum(shares**2))
    if neighbors.size == 0 or by_chance >= 1.0:
        return 0.0
    observed = float(np.mean(predicted[neighbors] == predicted[queries][:, None]))
    return (observed - by_chance) / (1.0 - by_chance)
