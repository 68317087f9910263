"""Which images are similar: nearest neighbors, a map on which they are near each other, outliers and duplicates."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Bools, Floats, Ints, evenly_spaced, row_parts
from captune.core.errors import CaptuneError
from captune.core.files import cache_folder, digest, write_whole

VERSION = b"2"
N_LANDMARKS = 2000
"""Images that t-SNE places; others follow the landmarks that they resemble most."""
N_NEIGHBORS = 6
N_COMPONENTS = 50
N_STEPS = 500
"""Half of scikit-learn's default, which saves every report about two seconds."""
N_COMPARED = 1000
"""Images that all others are compared with; duplicates are searched among images with the same nearest landmark."""
N_NEAREST = 3
SAME = 0.99
"""Cosine similarity from which two images count as duplicates: copies in another size or quality."""
BYTES_AT_ONCE, IMAGES_AT_ONCE = 1 << 26, 16_384
"""In one block of a search for neighbors."""
FAR = 4.0
"""Robust standard deviations (1.48 median absolute deviations) below the median from which an image is an outlier."""


def project_quickly(vectors: Floats) -> Floats:
    """Return the first two principal components from 0 to 1, `(images, 2)`."""
    return _fit_square(_components(vectors, 2))


def project(vectors: Floats, seed: int = 0, folder: Path | None = None) -> Floats:
    """Return a t-SNE map from 0 to 1, `(images, 2)`, computed once and then read from the cache."""
    key = digest(VERSION + str((vectors.shape, seed)).encode() + np.ascontiguousarray(vectors).tobytes())
    path = (folder or cache_folder() / "maps") / f"{key}.npy"
    try:
        found: Floats = np.load(path, allow_pickle=False)
        if found.shape == (len(vectors), 2) and np.isfinite(found).all():
            return found
    except (OSError, ValueError):
        pass
    points = project_quickly(vectors) if len(vectors) < 10 else _place(vectors, seed)
    file = io.BytesIO()
    np.save(file, points, allow_pickle=False)
    with suppress(CaptuneError):  # a cache that cannot be written costs time, not the map
        write_whole(path, file.getvalue())
    return points


def _place(vectors: Floats, seed: int) -> Floats:
    """Place landmarks by t-SNE and all others at a weighted mean of the nearest ones, so that none hides another."""
    from sklearn.manifold import TSNE
    from sklearn.neighbors import KNeighborsRegressor
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    landmarks = evenly_spaced(len(vectors), N_LANDMARKS)
    reduced = _components(vectors, min(N_COMPONENTS, *vectors.shape))
    perplexity = min(30.0, (len(landmarks) - 1) / 3)
    with threadpool_limits(1):  # the order of sums over threads varies, and t-SNE amplifies it
        tsne = TSNE(2, perplexity=perplexity, random_state=seed, init="pca", max_iter=N_STEPS)
        placed = np.asarray(tsne.fit_transform(reduced[landmarks]), dtype=np.float32)

    def weights(distances: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(1.0 / np.maximum(distances**2, 1e-6) ** 2)

    near = KNeighborsRegressor(min(N_NEIGHBORS, len(landmarks)), weights=weights)
    found = np.asarray(near.fit(reduced[landmarks], placed).predict(reduced), dtype=np.float32)
    found += np.random.default_rng(seed).normal(0, 0.004, found.shape).astype(np.float32) * np.ptp(placed, axis=0)
    found[landmarks] = placed
    return _fit_square(found)


def _components(vectors: Floats, n_components: int) -> Floats:
    """Return the first principal components, `(images, components)`."""
    mean = vectors.mean(axis=0)
    covariance = np.zeros((vectors.shape[1], vectors.shape[1]))
    for rows in row_parts(len(vectors), vectors.shape[1]):
        part = (vectors[rows] - mean).astype(np.float64)
        covariance += part.T @ part
    directions = np.linalg.eigh(covariance)[1][:, ::-1][:, :n_components].astype(np.float32)
    return np.asarray((vectors - mean) @ directions, dtype=np.float32)


def _fit_square(points: Floats) -> Floats:
    if points.shape[1] < 2:
        points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    low, high = points.min(axis=0), points.max(axis=0)
    return np.asarray((points - low) / np.maximum(high - low, 1e-9), dtype=np.float32)


def find_outliers_and_duplicates(vectors: Floats) -> tuple[Bools, Bools]:
    """Return which images resemble hardly any other, and which have a duplicate, each `(images,)`."""
    n_images = len(vectors)
    landmarks = np.random.default_rng(0).permutation(n_images)[:N_COMPARED]
    familiar, duplicate = np.full(n_images, -1.0, dtype=np.float32), np.zeros(n_images, dtype=np.bool_)
    owners = np.zeros(n_images, dtype=np.int64)  # few images are all compared with each other
    everything = np.arange(n_images)
    for rows in row_parts(n_images, len(landmarks)):
        if n_images > N_LANDMARKS:
            owners[rows] = (vectors[rows] @ vectors[landmarks].T).argmax(axis=1)
        familiar[rows] = _similarity(vectors, everything[rows], landmarks)[0]
    order = np.argsort(owners, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
        for rows in row_parts(len(members), len(members)):
            near, nearest = _similarity(vectors, members[rows], members)
            familiar[members[rows]] = np.maximum(familiar[members[rows]], near)
            duplicate[members[rows]] = nearest >= SAME
    middle = np.median(familiar)
    spread = 1.4826 * float(np.median(np.abs(familiar - middle)))
    return familiar < middle - FAR * max(spread, 1e-6), duplicate


def _similarity(vectors: Floats, images: Ints, others: Ints) -> tuple[Floats, Floats]:
    """Return the mean similarity of images to their nearest neighbors among others, and to the nearest one."""
    similar = vectors[images] @ vectors[others].T
    similar[images[:, None] == others] = -1.0  # no image is its own neighbor
    n_neighbors = min(N_NEAREST, len(others))
    best = np.partition(similar, -n_neighbors, axis=1)[:, -n_neighbors:]
    return best.mean(axis=1), best.max(axis=1)


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
