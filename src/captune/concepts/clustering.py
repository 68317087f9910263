"""K-means on a shrinking set of images, where most rounds continue from the clusters of the previous round.

scikit-learn's KMeans, warm-started on the same schedule, is not fast enough: with it, detection is 9 times faster than
the literal Algorithm 1 on 6,300 images of 45 classes and 14 times on 5,994 of 200, against 17 and 30 times here
(comparison of benchmarks/mismatch.py, one world). It compares every image with every centroid in each iteration.
"""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Bools, Floats, Ints, take_rows

_ITERATIONS_AFRESH = 30
_ITERATIONS_PER_ROUND = 5
_LATE_WORK, _LITTLE_WORK = 0.25, 1 << 16
"""A round is late when images x clusters are at most this share of what they were at first, or at most this many."""

_AFRESH_AT_EARLY, _AFRESH_AT_LATE = 0.7, 0.98
"""Shares of the clusters at which to start from new random centroids, so that no accident lasts: seldom while a
start is dear, almost every round late, when starts are cheap and decide which classes are left."""

_SAMPLE_PER_CLUSTER = 16
"""New centroids are spread over a sample of this many images per cluster."""

_CHUNK_FLOATS = 1 << 22
"""Scores or rows that are held at once: 16 MB, whatever the number of images."""

_COMPACT_AT = 0.9
"""Rows of images that left stay in place until this share of the rows is alive; then these move together."""

_NO_CLUSTER = -1


class ShrinkingClusters:
    """The K-means clusters of images `(images, width)` of which some leave, with fewer clusters every time.

    A centroid whose members stayed the same has not moved, so only what can have changed is compared again. `_best`
    is the score of an image's own centroid and `_rival` an upper bound on that of every other one, which makes the
    assignments those of plain Lloyd iterations.
    """

    def __init__(self, images: Floats, n_clusters: int, generator: np.random.Generator) -> None:
        n_images = len(images)
        self._rows = np.ascontiguousarray(images, dtype=np.float32)
        self._owns_rows = False
        self._generator = generator
        self._positions: Ints = np.arange(n_images, dtype=np.int64)
        self._alive: Bools = np.ones(n_images, dtype=np.bool_)
        self._owner: Ints = np.empty(n_images, dtype=np.int64)
        self._best: Floats = np.empty(n_images, dtype=np.float32)
        self._rival: Floats = np.empty(n_images, dtype=np.float32)
        self._first_work = n_images * n_clusters
        self._start_afresh(min(n_clusters, n_images))

    def members(self, cluster: int) -> Ints:
        """Return the positions of the images of a cluster."""
        return self._positions[self._alive & (self._owner == cluster)]

    def remaining(self) -> Ints:
        """Return the positions of all images that are left."""
        return self._positions[self._alive]

    def owners(self) -> Ints:
        """Return the cluster of every remaining image, in the order of `remaining`."""
        return self._owner[self._alive]

    def shrink(self, images: Ints, n_clusters: int) -> None:
        """Take images out and cluster the others again, into no more clusters than images."""
        rows = np.searchsorted(self._positions, images)
        self._transfer(rows, np.full(len(rows), _NO_CLUSTER, dtype=np.int64))
        self._alive[rows] = False
        n_alive = int(np.count_nonzero(self._alive))
        if n_alive < _COMPACT_AT * len(self._alive):
            self._compact()
        n_clusters = min(n_clusters, n_alive)
        is_late = n_alive * n_clusters <= max(_LATE_WORK * self._first_work, _LITTLE_WORK)
        afresh_at = (_AFRESH_AT_LATE if is_late else _AFRESH_AT_EARLY) * self._n_afresh
        if n_clusters <= afresh_at or n_clusters < len(self.centroids) - 1:
            self._start_afresh(n_clusters)
        else:
            if n_clusters < len(self.centroids):
                self._drop_least_needed()
            self._settle(_ITERATIONS_PER_ROUND)

    def _start_afresh(self, n_clusters: int) -> None:
        """Cluster all remaining images from new random centroids."""
        self._n_afresh = n_clusters
        self._owner[:], self._best[:], self._rival[:] = _NO_CLUSTER, -np.inf, np.inf
        alive = np.flatnonzero(self._alive)
        if n_clusters == len(alive):  # every image is a cluster of its own
            self.centroids: Floats = np.array(self._rows[alive], dtype=np.float32)
        else:
            n_sample = min(len(alive), _SAMPLE_PER_CLUSTER * n_clusters)
            sample = self._generator.choice(alive, n_sample, replace=False)
            self.centroids = spread_centroids(self._rows[np.sort(sample)], n_clusters, self._generator)
        self._sums = np.zeros(self.centroids.shape, dtype=np.float64)
        self._sizes: Ints = np.zeros(n_clusters, dtype=np.int64)
        self._moved: Bools = np.ones(n_clusters, dtype=np.bool_)
        if n_clusters:
            self._settle(_ITERATIONS_AFRESH)

    def _drop_least_needed(self) -> None:
        """Take out the centroid whose images lose least when they go to their second nearest one."""
        held = np.flatnonzero(self._owner != _NO_CLUSTER)
        losses = np.maximum(self._best[held] - self._rival[held], 0)
        cluster = int(np.bincount(self._owner[held], weights=losses, minlength=len(self._sizes)).argmin())
        self.centroids = np.delete(self.centroids, cluster, axis=0)
        self._sums = np.delete(self._sums, cluster, axis=0)
        self._sizes = np.delete(self._sizes, cluster)
        self._moved = np.delete(self._moved, cluster)
        self._owner[self._owner == cluster] = _NO_CLUSTER
        self._owner[self._owner > cluster] -= 1

    def _settle(self, max_iterations: int) -> None:
        """Run Lloyd iterations until no image changes its cluster, or for so many iterations."""
        for _ in range(max_iterations):
            self._move_centroids()
            owners = self._assign()
            rows = np.flatnonzero((owners != self._owner) & self._alive)
            self._moved[:] = False
            if not len(rows):
                return
            self._transfer(rows, owners[rows])
        self._move_centroids()

    def _move_centroids(self) -> None:
        """Put every centroid whose members changed at their mean; an empty one goes to the worst placed image."""
        if not self._sizes.any():
            return
        for cluster in np.flatnonzero(self._sizes == 0):
            movable = np.flatnonzero(self._owner != _NO_CLUSTER)
            movable = movable[self._sizes[self._owner[movable]] > 1]
            if not len(movable):
                break
            worst = movable[[int(self._best[movable].argmin())]]
            self._transfer(worst, np.array([cluster], dtype=np.int64))
            self._best[worst] = np.inf  # not the worst placed one for the next empty cluster
        filled = self._moved & (self._sizes > 0)
        self.centroids[filled] = self._sums[filled] / self._sizes[filled, None]

    def _transfer(self, rows: Ints, owners: Ints) -> None:
        """Move rows to other clusters and note which centroids have to move."""
        for sign, clusters in ((-1, self._owner[rows]), (1, owners)):
            held = clusters != _NO_CLUSTER
            self._add(rows[held], clusters[held], sign)
        self._owner[rows] = owners

    def _add(self, rows: Ints, clusters: Ints, sign: int) -> None:
        """Add rows to the sums of their clusters, or subtract them."""
        order = np.argsort(clusters, kind="stable")
        step = max(1, _CHUNK_FLOATS // self._rows.shape[1])
        for start in range(0, len(rows), step):
            part = order[start : start + step]
            found, first = np.unique(clusters[part], return_index=True)
            moving = self._rows[rows[part]]
            for cluster, begin, end in zip(found, first, [*first[1:], len(part)], strict=True):
                self._sums[cluster] += sign * moving[begin:end].sum(axis=0)
        counts = np.bincount(clusters, minlength=len(self._sizes))
        self._sizes += sign * counts
        self._moved |= counts > 0

    def _assign(self) -> Ints:
        """Return the nearest centroid of every row."""
        owners = self._owner.copy()
        offsets = 0.5 * np.einsum("kd,kd->k", self.centroids, self.centroids)
        is_all = np.count_nonzero(self._moved) * 2 > len(self._moved)
        step = max(1, _CHUNK_FLOATS // len(self.centroids))
        for start in range(0, len(self._rows), step):
            part = slice(start, start + step)
            is_open = self._alive[part] if is_all else self._compare_moved(part, owners, offsets)
            rows: slice | Ints = part if is_open.all() else start + np.flatnonzero(is_open)
            if is_open.any():
                found = _top_two(self._rows[rows], self.centroids, offsets)
                owners[rows], self._best[rows], self._rival[rows] = found
        return owners

    def _compare_moved(self, part: slice, owners: Ints, offsets: Floats) -> Bools:
        """Compare rows with the centroids that moved; return the mask of rows for which that is not enough."""
        held, best, rival = self._owner[part], self._best[part], self._rival[part]
        is_loose = (held == _NO_CLUSTER) | self._moved[held]
        moved = np.flatnonzero(self._moved)
        if not len(moved):
            return self._alive[part] & is_loose
        top_cluster, top, second = _top_two(self._rows[part], self.centroids[moved], offsets[moved])
        # No centroid that stayed in its place can score more than this.
        limit = np.where(is_loose, rival, best)
        is_won = top > limit
        owners[part][is_won] = moved[top_cluster[is_won]]
        best[is_won] = top[is_won]
        rival[:] = np.where(is_won, np.maximum(limit, second), np.maximum(rival, top))
        return self._alive[part] & is_loose & ~is_won

    def _compact(self) -> None:
        """Move the rows that remain together: the first time into an array of our own, then in place."""
        keep = np.flatnonzero(self._alive)
        if self._owns_rows:
            step = max(1, _CHUNK_FLOATS // self._rows.shape[1])
            for start in range(0, len(keep), step):
                part = keep[start : start + step]
                self._rows[start : start + len(part)] = self._rows[part]
            self._rows = self._rows[: len(keep)]
        else:
            self._rows, self._owns_rows = take_rows(self._rows, keep), True
        self._positions, self._owner = self._positions[keep], self._owner[keep]
        self._best, self._rival = self._best[keep], self._rival[keep]
        self._alive = np.ones(len(keep), dtype=np.bool_)


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


def _top_two(rows: Floats, centroids: Floats, offsets: Floats) -> tuple[Ints, Floats, Floats]:
    """Return the nearest centroid of each row, its score `x.c - |c|^2 / 2` and the score of the second nearest."""
    scores = rows @ centroids.T
    scores -= offsets
    each = np.arange(len(rows))
    top = scores.argmax(axis=1)
    best = scores[each, top]
    scores[each, top] = -np.inf
    return top, best, scores.max(axis=1)
