"""What an image's neighbors say: probabilities spread over a neighbor graph and gently balanced.

Beyond the paper. Images of one class lie close together even where the class name misleads, so the labels that
neighbors agree on are more often right than the most confident ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError
from captune.core.scratch import is_large

BYTES_AT_ONCE = 1 << 26
IMAGES_AT_ONCE = 16_384
SHARPNESS = 10.0
"""A neighbor whose cosine is lower by 0.1 counts e times less."""


@dataclass(frozen=True, eq=False)
class NeighborGraph:
    """The nearest other images of each image and how much each of them counts, both `(images, neighbors)`."""

    neighbors: Ints
    weights: Floats


def nearest_neighbors(embeddings: Floats, queries: Ints, n_neighbors: int) -> Ints:
    """Return the images nearest by cosine to each queried image, itself left out, in no particular order.

    The result is `(queries, n_neighbors)`, with fewer columns when there are fewer other images. Embeddings have
    length one; cosines are computed for some queries at a time, so memory never grows with pairs of images.
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
    """Return the nearest images of some queries, in one pass over blocks of all images."""
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


def neighbor_graph(embeddings: Floats, n_neighbors: int = 10) -> NeighborGraph:
    """Find each image's nearest neighbors and weigh them by how close they are."""
    if n_neighbors < 1:
        raise InputError(f"n_neighbors: expected at least 1, got {n_neighbors}.")
    neighbors = nearest_neighbors(embeddings, np.arange(len(embeddings)), n_neighbors)
    if neighbors.shape[1] == 0:  # a single image
        return NeighborGraph(neighbors, np.zeros(neighbors.shape, dtype=np.float32))
    # One neighbor at a time: no (images, neighbors, width) in memory.
    close = np.stack([np.einsum("ij,ij->i", embeddings, embeddings[column]) for column in neighbors.T], axis=1)
    force = np.exp(SHARPNESS * (close - close.max(axis=1, keepdims=True)))
    weights = force / force.sum(axis=1, keepdims=True)
    return NeighborGraph(neighbors, np.asarray(weights, dtype=np.float32))


def spread(probabilities: Floats, graph: NeighborGraph, rounds: int = 20, own: float = 0.1) -> Floats:
    """Mix each image's probabilities with its neighbors', over and over; `own` of its first ones stays."""
    mixed = probabilities
    for _ in range(rounds if graph.neighbors.shape[1] else 0):
        said = np.zeros_like(probabilities)
        for place in range(graph.neighbors.shape[1]):  # one neighbor at a time: no (images, k, classes) in memory
            said += graph.weights[:, place, None] * mixed[graph.neighbors[:, place]]
        mixed = (1.0 - own) * said + own * probabilities
    return np.asarray(mixed, dtype=np.float32)


def balance(probabilities: Floats, strength: float = 0.5, rounds: int = 5) -> Floats:
    """Lower classes that take more than their share and raise the others; 0 leaves all, 1 evens out the sums."""
    if not 0.0 <= strength <= 1.0:
        raise InputError(f"strength: expected 0 to 1, got {strength}.")
    balanced: NDArray[np.float64] = probabilities.astype(np.float64)
    for _ in range(rounds if strength else 0):
        taken = np.maximum(balanced.sum(axis=0, keepdims=True), 1e-12)
        balanced = balanced / taken**strength
        balanced /= balanced.sum(axis=1, keepdims=True)
    return balanced.astype(np.float32)


def neighbor_consensus(
    probabilities: Floats, graph: NeighborGraph, strength: float = 0.5, known: Floats | None = None
) -> Floats:
    """Return what neighbors agree on, `(images, classes)`: spread, then balanced.

    `known` are the probabilities of further images of the graph, behind the others, whose class is given: they speak
    to their neighbors, and no answer is returned for them.
    """
    everyone = probabilities if known is None else np.concatenate([probabilities, known])
    return balance(spread(everyone, graph), strength)[: len(probabilities)]
