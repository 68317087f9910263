"""K-means on a shrinking set of images, where most rounds continue from the clusters of the previous round."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from captune.core.arrays import Floats, Ints

_ITERATIONS_AFRESH = 30
_ITERATIONS_PER_ROUND = 5
_LATE_WORK, _LITTLE_WORK = 0.25, 1 << 16
"""A round is late when images x clusters are at most this share of what they were at first, or at most this many."""

_AFRESH_AT_EARLY, _AFRESH_AT_LATE = 0.7, 0.98
"""Shares of the clusters at which to start from new random centroids, so that no accident lasts: seldom while a
start is dear, almost every round late, when starts are cheap and decide which classes are left."""

_SAMPLE_PER_CLUSTER = 16
"""New centroids are spread over a sample of this many images per cluster."""

_NO_CLUSTER = -1


class ShrinkingClusters:
    """The K-means clusters of images `(images, width)` of which some leave, with fewer clusters every time.

    `remaining` holds the positions of the images that are left, and `owners` the cluster of each of them.
    """

    def __init__(self, images: Floats, n_clusters: int, generator: np.random.Generator) -> None:
        self._images = np.ascontiguousarray(images, dtype=np.float32)
        self._generator = generator
        self._first_work = len(images) * n_clusters
        self.remaining: Ints = np.arange(len(images), dtype=np.int64)
        self.owners: Ints = np.full(len(images), _NO_CLUSTER, dtype=np.int64)
        self._start_afresh(min(n_clusters, len(images)))

    def members(self, cluster: int) -> Ints:
        """Return the positions of the images of a cluster."""
        return self.remaining[self.owners == cluster]

    def shrink(self, images: Ints, n_clusters: int) -> None:
        """Take images out and cluster the others again, into no more clusters than images."""
        is_left = ~np.isin(self.remaining, images)
        self.remaining, self.owners = self.remaining[is_left], self.owners[is_left]
        n_clusters = min(n_clusters, len(self.remaining))
        is_late = len(self.remaining) * n_clusters <= max(_LATE_WORK * self._first_work, _LITTLE_WORK)
        afresh_at = (_AFRESH_AT_LATE if is_late else _AFRESH_AT_EARLY) * self._n_afresh
        if n_clusters <= afresh_at or n_clusters < len(self.centroids) - 1:
            self._start_afresh(n_clusters)
        else:
            rows = self._images[self.remaining]
            if n_clusters < len(self.centroids):
                self._drop_least_needed(rows)
            self._settle(rows, _ITERATIONS_PER_ROUND)

    def _start_afresh(self, n_clusters: int) -> None:
        """Cluster all remaining images from new random centroids."""
        self._n_afresh = n_clusters
        rows = self._images[self.remaining]
        self.owners = np.full(len(rows), _NO_CLUSTER, dtype=np.int64)
        if n_clusters == len(rows):  # every image is a cluster of its own
            self.centroids: Floats = rows
        else:
            n_sample = min(len(rows), _SAMPLE_PER_CLUSTER * n_clusters)
            sample = np.sort(self._generator.choice(len(rows), n_sample, replace=False))
            self.centroids = spread_centroids(rows[sample], n_clusters, self._generator)
        if n_clusters:
            self._settle(rows, _ITERATIONS_AFRESH)

    def _drop_least_needed(self, rows: Floats) -> None:
        """Take out the centroid whose images lose least when they go to their second nearest one."""
        scores, each = _scores(rows, self.centroids), np.arange(len(rows))
        best = scores[each, self.owners]
        scores[each, self.owners] = -np.inf
        losses = np.maximum(best - scores.max(axis=1), 0)
        cluster = int(np.bincount(self.owners, weights=losses, minlength=len(self.centroids)).argmin())
        self.centroids = np.delete(self.centroids, cluster, axis=0)
        self.owners[self.owners == cluster] = _NO_CLUSTER
        self.owners[self.owners > cluster] -= 1

    def _settle(self, rows: Floats, max_iterations: int) -> None:
        """Run Lloyd iterations until no image changes its cluster, or for so many iterations."""
        for _ in range(max_iterations):
            self._move_centroids(rows)
            before, self.owners = self.owners, _scores(rows, self.centroids).argmax(axis=1)
            if np.array_equal(before, self.owners):
                return
        self._move_centroids(rows)

    def _move_centroids(self, rows: Floats) -> None:
        """Put every centroid at the mean of its members; an empty one goes to the worst placed image."""
        held = np.flatnonzero(self.owners != _NO_CLUSTER)
        if not len(held):
            return
        n_clusters = len(self.centroids)
        sizes = np.bincount(self.owners[held], minlength=n_clusters)
        if not sizes.all():
            gaps = np.full(len(rows), -np.inf, dtype=np.float32)
            gaps[held] = ((rows[held] - self.centroids[self.owners[held]]) ** 2).sum(axis=1)
            for cluster in np.flatnonzero(sizes == 0):
                movable = held[sizes[self.owners[held]] > 1]
                if not len(movable):
                    break
                worst = movable[gaps[movable].argmax()]
                sizes[self.owners[worst]] -= 1
                self.owners[worst], sizes[cluster], gaps[worst] = cluster, 1, -np.inf
        ones = np.ones(len(held), dtype=np.float32)
        sums = sparse.csr_matrix((ones, (self.owners[held], held)), shape=(n_clusters, len(rows))) @ rows
        self.centroids = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], self.centroids)
        self.centroids = self.centroids.astype(np.float32)


def spread_centroids(sample: Floats, n_clusters: int, generator: np.random.Generator) -> Floats:
    """Choose rows `(clusters, width)` that lie apart: k-means++ with the best of a few draws for each."""
    squares = np.einsum("nd,nd->n", sample, sample)
    distances = np.ones(len(sample), dtype=np.float32)
    is_free = np.ones(len(sample), dtype=np.bool_)
    chosen: list[int] = []
    while len(chosen) < n_clusters:
        running = np.cumsum(distances, dtype=np.float64)
        if running[-1] <= 0:  # every other row is a copy of a chosen one: any of them serves
            running = np.cumsum(is_free, dtype=np.float64)
        n_draws = 2 + int(np.log(n_clusters)) if chosen else 1
        drawn = np.searchsorted(running, generator.random(n_draws) * running[-1], side="right")
        gaps = np.maximum(squares + squares[drawn, None] - 2 * (sample[drawn] @ sample.T), 0)
        gaps = np.minimum(gaps, distances) if chosen else gaps
        best = int(gaps.sum(axis=1).argmin())
        chosen.append(int(drawn[best]))
        is_free[chosen[-1]] = False
        distances = np.where(is_free, gaps[best], 0).astype(np.float32)
    return np.array(sample[chosen], dtype=np.float32)


def _scores(rows: Floats, centroids: Floats) -> Floats:
    """Return x.c - |c|^2 / 2 of each row and centroid, highest at the nearest centroid."""
    scores = rows @ centroids.T
    scores -= 0.5 * np.einsum("kd,kd->k", centroids, centroids)
    return np.asarray(scores, dtype=np.float32)
