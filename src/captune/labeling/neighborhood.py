"""Neighborhood vote: probabilities are propagated over a nearest-neighbor graph and balanced over the classes.

Beyond the paper. Images of one class lie close together even if the class name is misleading, so labels on which
neighbors agree are more often right than the most confident ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError
from captune.core.scratch import is_large
from captune.labeling.pseudo_labels import PseudoLabels
from captune.labeling.selection import top_k_per_class

BYTES_AT_ONCE = 1 << 26
IMAGES_AT_ONCE = 16_384
SHARPNESS = 10.0
"""The weight of a neighbor falls by a factor of e when its cosine falls by 0.1."""


@dataclass(frozen=True, eq=False)
class NeighborGraph:
    """The nearest neighbors of each image and their weights, both `(images, neighbors)`."""

    neighbors: Ints
    weights: Floats


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


def neighbor_graph(embeddings: Floats, n_neighbors: int = 10) -> NeighborGraph:
    """Return each image's nearest neighbors, weighted by similarity."""
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


def propagate(probabilities: Floats, graph: NeighborGraph, rounds: int = 20, own: float = 0.1) -> Floats:
    """Propagate probabilities over the graph; in each round an image keeps the share `own` of its initial ones."""
    mixed = probabilities
    for _ in range(rounds if graph.neighbors.shape[1] else 0):
        received = np.zeros_like(probabilities)
        for place in range(graph.neighbors.shape[1]):  # one neighbor at a time: no (images, k, classes) in memory
            received += graph.weights[:, place, None] * mixed[graph.neighbors[:, place]]
        mixed = (1.0 - own) * received + own * probabilities
    return np.asarray(mixed, dtype=np.float32)


def balance(probabilities: Floats, strength: float = 0.5, rounds: int = 5) -> Floats:
    """Even out the total probability of the classes; a strength of 0 changes nothing, 1 makes the totals equal."""
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
    """Return the consensus of neighbors, `(images, classes)`: propagated, then balanced.

    `known` holds the one-hot labels of the graph's remaining images, which follow the others: labeled images vote,
    but no result is returned for them.
    """
    everyone = probabilities if known is None else np.concatenate([probabilities, known])
    return balance(propagate(everyone, graph), strength)[: len(probabilities)]


class NeighborhoodVote:
    """Selects pseudo-labels by the consensus of neighbors, among which labeled images of allowed classes vote too."""

    def __init__(
        self,
        images: Floats,
        labeled: Floats,
        labels: Ints,
        n_classes: int,
        allowed: Ints,
        *,
        n_neighbors: int,
        strength: float,
    ) -> None:
        votes = np.isin(labels, allowed)
        self.known = np.eye(n_classes, dtype=np.float32)[labels[votes]]
        self.graph = neighbor_graph(np.concatenate([images, labeled[votes]]), n_neighbors)
        self.allowed, self.strength = allowed, strength

    def select(self, probabilities: Floats, k: int, most: int | None = None) -> tuple[PseudoLabels, Ints]:
        """Return the top k images of each class by consensus, and the neighbor label of every image.

        With `most`, a class gets up to that many images, of which those beyond k must be predicted as the class.
        """
        consensus = neighbor_consensus(probabilities, self.graph, self.strength, self.known)
        selected = top_k_per_class(consensus, k, self.allowed)
        if most is not None:
            selected = top_k_per_class(consensus, most, self.allowed, predicted_only=True).extend(selected)
        return selected, np.asarray(consensus.argmax(axis=1), dtype=np.int64)
