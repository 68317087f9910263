"""Which images look like no others, and which look the same."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Bools, Floats, Ints, row_parts

N_LANDMARKS = 1000
"""Images that all others are compared with; duplicates are searched among images with the same nearest landmark."""
N_NEIGHBORS = 3
SAME = 0.99
"""Cosine similarity from which two images count as duplicates: copies in another size or quality."""
FAR = 4.0
"""Robust standard deviations (1.48 median absolute deviations) below the median from which an image is an outlier."""


def find_outliers_and_duplicates(vectors: Floats) -> tuple[Bools, Bools]:
    """Return which images resemble hardly any other, and which have a duplicate, each `(images,)`."""
    n_images = len(vectors)
    landmarks = np.random.default_rng(0).permutation(n_images)[:N_LANDMARKS]
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
    n_neighbors = min(N_NEIGHBORS, len(others))
    best = np.partition(similar, -n_neighbors, axis=1)[:, -n_neighbors:]
    return best.mean(axis=1), best.max(axis=1)
