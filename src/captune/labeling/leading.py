"""Deferred acceptance for more images than fit into memory: only images near the top of some class can be placed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from captune.core.arrays import Bools, Floats, Ints
from captune.core.scratch import empty_rows, is_large, row_parts
from captune.labeling.assignment import assign

FIRST_DEPTH, DEEPER = 4, 4
"""How many times its quota a class lists at first, and how much longer a list gets that was too short."""


class Scores(NamedTuple):
    """What `assign` compares, for some images: preferences and priorities, both `(images, classes)`."""

    preferences: Floats
    priorities: Floats


def assign_some(n_images: int, scores_of: Callable[[slice | Ints], Scores], quota: Ints) -> tuple[Ints, Ints, Floats]:
    """Return what `assign` returns, and the preference of each placed image for its class."""
    n_classes = len(quota)
    if not is_large(n_images, n_classes) or FIRST_DEPTH * int(quota.sum()) > n_images:
        scores = _gather(scores_of, slice(0, n_images), n_classes)
        images, labels = assign(scores.preferences, scores.priorities, quota)
        return images, labels, scores.preferences[images, labels]
    images, labels = assign_large(n_images, scores_of, quota)
    return images, labels, _gather(scores_of, images, n_classes).preferences[np.arange(len(images)), labels]


def assign_large(n_images: int, scores_of: Callable[[slice | Ints], Scores], quota: Ints) -> tuple[Ints, Ints]:
    """Return what `assign` returns for all images, from the scores of some at a time.

    Each class lists its first images, a few times its quota. If all classes fill up from the listed images, and none
    of them takes one below the end of its own list, every other image would be refused everywhere, and deferred
    acceptance does not depend on who proposes first: the result is that of all images. Else the lists get longer.
    """
    depth = FIRST_DEPTH * max(1, int(quota.max(initial=1)))
    while True:
        listed = _list_first(n_images, scores_of, len(quota), depth)
        leading = np.unique(listed.images)
        scores = _gather(scores_of, leading, len(quota))
        rows, labels = assign(scores.preferences, scores.priorities, quota)
        is_settled = (quota == 0) | ~listed.is_full()
        is_settled |= listed.holds_above(leading[rows], labels, scores.priorities[rows, labels], quota)
        if is_settled.all() or len(leading) == n_images:
            return leading[rows], labels
        depth *= DEEPER


def _gather(scores_of: Callable[[slice | Ints], Scores], images: slice | Ints, n_classes: int) -> Scores:
    """Return the scores of some images; of many, in scratch space."""
    n_images = images.stop if isinstance(images, slice) else len(images)
    parts = list(row_parts(n_images, n_classes))
    if len(parts) <= 1:
        return scores_of(images)
    preferences, priorities = empty_rows(n_images, n_classes), None
    for part in parts:
        found = scores_of(part if isinstance(images, slice) else images[part])
        preferences[part] = found.preferences
        if found.priorities is not found.preferences:
            priorities = empty_rows(n_images, n_classes) if priorities is None else priorities
            priorities[part] = found.priorities
    return Scores(preferences, preferences if priorities is None else priorities)


def _list_first(n_images: int, scores_of: Callable[[slice | Ints], Scores], n_classes: int, depth: int) -> _Listed:
    """Return the first images of every class, in one pass over all images."""
    listed = _Listed(n_classes, depth)
    for part in row_parts(n_images, n_classes):
        scores = scores_of(part)
        # An equal of the last on a full list comes after it, so it stays out.
        rows, classes = np.nonzero((scores.priorities > listed.bar) & (scores.preferences > -np.inf))
        listed.add(rows + part.start, classes, scores.priorities[rows, classes])
    listed.cut()
    return listed


class _Listed:
    """The first images of every class; new ones wait until there are enough to be worth a sort."""

    def __init__(self, n_classes: int, depth: int) -> None:
        self.n_classes, self.depth = n_classes, depth
        self.images: Ints = np.empty(0, dtype=np.int64)
        self.classes: Ints = np.empty(0, dtype=np.int64)
        self.priorities: Floats = np.empty(0, dtype=np.float32)
        self.bar: Floats = np.full(n_classes, -np.inf, dtype=np.float32)
        self.bar_image: Ints = np.full(n_classes, -1, dtype=np.int64)
        self._enough = 2 * n_classes * depth

    def is_full(self) -> Bools:
        """Return which lists may leave an image out; the others hold all images that want their class."""
        return np.bincount(self.classes, minlength=self.n_classes) >= self.depth

    def holds_above(self, images: Ints, classes: Ints, priorities: Floats, quota: Ints) -> Bools:
        """Return the classes that their quota of images, all of them from above the end of the list, has filled."""
        order = np.lexsort((images, -priorities, classes))
        ends = np.searchsorted(classes[order], np.arange(self.n_classes), side="right")
        taken = np.bincount(classes, minlength=self.n_classes)
        if not len(order):
            return taken >= quota
        worst = order[np.maximum(ends - 1, 0)]
        is_above = (priorities[worst] > self.bar) | (
            (priorities[worst] == self.bar) & (images[worst] <= self.bar_image)
        )
        return np.asarray((taken >= quota) & is_above, dtype=np.bool_)

    def add(self, images: Ints, classes: Ints, priorities: Floats) -> None:
        """Take images that passed their class's bar; they come in order, so equals are behind those already here."""
        self.images = np.concatenate([self.images, images])
        self.classes = np.concatenate([self.classes, classes])
        self.priorities = np.concatenate([self.priorities, priorities])
        if len(self.images) > self._enough:
            self.cut()

    def cut(self) -> None:
        """Keep the first of every class, and raise the bars of the full lists."""
        order = np.lexsort((self.images, -self.priorities, self.classes))
        starts = np.searchsorted(self.classes[order], np.arange(self.n_classes))
        rank = np.arange(len(order)) - starts[self.classes[order]]
        is_last = rank == self.depth - 1
        self.bar[self.classes[order][is_last]] = self.priorities[order][is_last]
        self.bar_image[self.classes[order][is_last]] = self.images[order][is_last]
        kept = order[rank < self.depth]
        self.images, self.classes, self.priorities = self.images[kept], self.classes[kept], self.priorities[kept]
