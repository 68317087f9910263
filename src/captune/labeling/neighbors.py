"""The nearest images of an image, by the cosine of their embeddings."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Floats, Ints

BYTES_AT_ONCE = 1 << 26
IMAGES_AT_ONCE = 16_384


def nearest_neighbors(embeddings: Floats, queries: Ints, n_neighbors: int) -> Ints:
    """Return the nearest images of each queried image by cosine, excluding itself, in no particular order.

    The result is `(queries, n_neighbors)`, with fewer columns if there are fewer other images. Embeddings are unit
    vectors; cosines are computed in blocks, so memory does not grow with the number of pairs.
    """
    n_images = len(embeddings)
    n_kept, n_block = min(n_neighbors, n_images - 1), max(1, min(n_images, IMAGES_AT_ONCE))
    found = np.zeros((len(queries), n_kept), dtype=np.int64)
    step = max(1, BYTES_AT_ONCE // (4 * n_block))
    for start in range(0, len(queries) if n_kept else 0, step):
        rows = queries[start : start + step]
        cosines, images = list[Floats](), list[Ints]()
        for first in range(0, n_images, n_block):
            block = embeddings[rows] @ embeddings[first : first + n_block].T
            is_here = (rows >= first) & (rows < first + block.shape[1])
            block[np.flatnonzero(is_here), rows[is_here] - first] = -np.inf  # an image is not its own neighbor
            top = np.argpartition(-block, min(n_kept, block.shape[1]) - 1, axis=1)[:, :n_kept]
            cosines.append(np.take_along_axis(block, top, axis=1))
            images.append(first + top)
        best = np.argpartition(-np.hstack(cosines), n_kept - 1, axis=1)[:, :n_kept]
        found[start : start + step] = np.take_along_axis(np.hstack(images), best, axis=1)
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
