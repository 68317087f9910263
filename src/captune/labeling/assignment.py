"""Deferred acceptance: assign each image to at most one class, and to each class at most its quota of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from captune.core.arrays import Bools, Floats, Ints
from captune.core.scratch import empty_rows, is_large, row_parts

FIRST_DEPTH, DEEPER = 4, 4
"""The first length of a class's shortlist, as a multiple of its quota, and the factor by which a short one grows."""
_ROWS_AT_ONCE = 8192


def assign(preferences: Floats, priorities: Floats, quota: Ints) -> tuple[Ints, Ints]:
    """Return the assigned images in ascending order and the class of each, by deferred acceptance.

    Each image proposes to the class it prefers most. A class keeps the proposals of highest priority, up to its
    quota; rejected images propose to their next class until they are assigned or have no class left. `preferences`
    and `priorities` are `(images, classes)`; an image never proposes to a class of preference minus infinity. Ties go
    to the first image and the first class.

    If both matrices are the same, this is the only stable assignment. It then equals the greedy one: visit all pairs
    from the highest score down, and keep a pair if its image is free and its class has room.
    """
    n_images, n_classes = preferences.shape
    class_of_image = np.full(n_images, -1, dtype=np.int64)
    cutoff = _Cutoff(
        np.where(quota > 0, -np.inf, np.inf).astype(priorities.dtype),
        np.full(n_classes, n_images, dtype=np.int64),
    )
    unassigned = np.arange(n_images, dtype=np.int64)
    while unassigned.size:
        choice = _next_choice(preferences, priorities, unassigned, cutoff)
        has_choice = choice >= 0
        class_of_image[unassigned[has_choice]] = choice[has_choice]
        proposed = np.zeros(n_classes + 1, dtype=np.bool_)
        proposed[choice[has_choice]] = True
        # Images without a class have index -1, and the last entry of `proposed` is False.
        members = np.flatnonzero(proposed[class_of_image])
        unassigned = _rejected(members, class_of_image[members], priorities, quota, cutoff)
        class_of_image[unassigned] = -1
    assigned = np.flatnonzero(class_of_image >= 0)
    return np.asarray(assigned, dtype=np.int64), class_of_image[assigned]


@dataclass
class _Cutoff:
    """What a new proposal must beat: nothing while a class has room, then the weakest proposal that it keeps."""

    priority: Floats
    image: Ints

    def is_beaten(self, priority: Floats, images: Ints) -> Bools:
        above = priority > self.priority
        level = priority == self.priority
        if level.any():
            above |= level & (images[:, None] < self.image)
        return np.asarray(above, dtype=np.bool_)


def _next_choice(preferences: Floats, priorities: Floats, images: Ints, cutoff: _Cutoff) -> Ints:
    """Return for each image the most preferred class that would accept it now, or -1.

    Cutoffs only rise, so a class that would reject an image now has already done so or will always do so.
    """
    choice = np.full(len(images), -1, dtype=np.int64)
    for start in range(0, len(images), _ROWS_AT_ONCE):
        rows = images[start : start + _ROWS_AT_ONCE]
        wanted = preferences[rows]
        priority = wanted if priorities is preferences else priorities[rows]
        open_preferences = np.where(cutoff.is_beaten(priority, rows), wanted, -np.inf)
        best = open_preferences.argmax(axis=1)
        is_open = open_preferences[np.arange(len(rows)), best] > -np.inf
        choice[start : start + _ROWS_AT_ONCE] = np.where(is_open, best, -1)
    return choice


def _rejected(members: Ints, classes: Ints, priorities: Floats, quota: Ints, cutoff: _Cutoff) -> Ints:
    """Return the members that exceed the quotas of their classes, and raise the cutoffs of the full classes."""
    priority = priorities[members, classes]
    order = np.lexsort((members, -priority, classes))
    members, classes, priority = members[order], classes[order], priority[order]
    starts = np.searchsorted(classes, np.arange(len(quota)))
    rank = np.arange(len(members)) - starts[classes]
    last = rank == quota[classes] - 1
    cutoff.priority[classes[last]] = priority[last]
    cutoff.image[classes[last]] = members[last]
    return np.asarray(members[rank >= quota[classes]], dtype=np.int64)


class Scores(NamedTuple):
    """Preferences and priorities of some images, both `(images, classes)`."""

    preferences: Floats
    priorities: Floats


ScoreFunction = Callable[[slice | Ints], Scores]
"""Computes the scores of the images at the given positions."""


def assign_in_parts(n_images: int, scores_of: ScoreFunction, quota: Ints) -> tuple[Ints, Ints, Floats]:
    """Return the result of `assign` and each assigned image's preference for its class, with bounded memory."""
    n_classes = len(quota)
    if not is_large(n_images, n_classes) or FIRST_DEPTH * int(quota.sum()) > n_images:
        scores = _compute_scores(scores_of, slice(0, n_images), n_classes)
        images, labels = assign(scores.preferences, scores.priorities, quota)
        return images, labels, scores.preferences[images, labels]
    images, labels = assign_from_shortlists(n_images, scores_of, quota)
    return images, labels, _compute_scores(scores_of, images, n_classes).preferences[np.arange(len(images)), labels]


def assign_from_shortlists(n_images: int, scores_of: ScoreFunction, quota: Ints) -> tuple[Ints, Ints]:
    """Return the result of `assign` for all images, holding the scores of only some of them in memory.

    Each class has a shortlist of its highest priorities, a few times its quota. If all classes fill up from the
    shortlisted images, and none takes an image below the end of its own shortlist, then every other image would be
    rejected everywhere. Deferred acceptance does not depend on the order of proposals, so the result is that of all
    images. Otherwise, the shortlists grow and the assignment is repeated.
    """
    depth = FIRST_DEPTH * max(1, int(quota.max(initial=1)))
    while True:
        shortlists = _make_shortlists(n_images, scores_of, len(quota), depth)
        candidates = np.unique(shortlists.images)
        scores = _compute_scores(scores_of, candidates, len(quota))
        rows, labels = assign(scores.preferences, scores.priorities, quota)
        is_settled = (quota == 0) | ~shortlists.is_full()
        is_settled |= shortlists.filled_above_end(candidates[rows], labels, scores.priorities[rows, labels], quota)
        if is_settled.all() or len(candidates) == n_images:
            return candidates[rows], labels
        depth *= DEEPER


def _compute_scores(scores_of: ScoreFunction, images: slice | Ints, n_classes: int) -> Scores:
    """Return the scores of some images, in scratch space if there are many."""
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


def _make_shortlists(n_images: int, scores_of: ScoreFunction, n_classes: int, depth: int) -> _Shortlists:
    """Return each class's images of highest priority, in one pass over all images."""
    shortlists = _Shortlists(n_classes, depth)
    for part in row_parts(n_images, n_classes):
        scores = scores_of(part)
        # An image that ties with the last one on a full list comes after it, so it stays out.
        rows, classes = np.nonzero((scores.priorities > shortlists.cutoff) & (scores.preferences > -np.inf))
        shortlists.add(rows + part.start, classes, scores.priorities[rows, classes])
    shortlists.trim()
    return shortlists


class _Shortlists:
    """Each class's images of highest priority; additions are sorted in bulk."""

    def __init__(self, n_classes: int, depth: int) -> None:
        self.n_classes, self.depth = n_classes, depth
        self.images: Ints = np.empty(0, dtype=np.int64)
        self.classes: Ints = np.empty(0, dtype=np.int64)
        self.priorities: Floats = np.empty(0, dtype=np.float32)
        self.cutoff: Floats = np.full(n_classes, -np.inf, dtype=np.float32)
        self.cutoff_image: Ints = np.full(n_classes, -1, dtype=np.int64)
        self._capacity = 2 * n_classes * depth

    def is_full(self) -> Bools:
        """Return which lists may omit an image; the others hold all images that can be in their class."""
        return np.bincount(self.classes, minlength=self.n_classes) >= self.depth

    def filled_above_end(self, images: Ints, classes: Ints, priorities: Floats, quota: Ints) -> Bools:
        """Return which classes have reached their quota with images no lower than the end of their list."""
        order = np.lexsort((images, -priorities, classes))
        ends = np.searchsorted(classes[order], np.arange(self.n_classes), side="right")
        taken = np.bincount(classes, minlength=self.n_classes)
        if not len(order):
            return taken >= quota
        worst = order[np.maximum(ends - 1, 0)]
        is_above = (priorities[worst] > self.cutoff) | (
            (priorities[worst] == self.cutoff) & (images[worst] <= self.cutoff_image)
        )
        return np.asarray((taken >= quota) & is_above, dtype=np.bool_)

    def add(self, images: Ints, classes: Ints, priorities: Floats) -> None:
        """Add images above their class's cutoff; they arrive in order, so ties rank behind those already listed."""
        self.images = np.concatenate([self.images, images])
        self.classes = np.concatenate([self.classes, classes])
        self.priorities = np.concatenate([self.priorities, priorities])
        if len(self.images) > self._capacity:
            self.trim()

    def trim(self) -> None:
        """Keep the highest priorities of each class, and raise the cutoffs of the full lists."""
        order = np.lexsort((self.images, -self.priorities, self.classes))
        starts = np.searchsorted(self.classes[order], np.arange(self.n_classes))
        rank = np.arange(len(order)) - starts[self.classes[order]]
        is_last = rank == self.depth - 1
        self.cutoff[self.classes[order][is_last]] = self.priorities[order][is_last]
        self.cutoff_image[self.classes[order][is_last]] = self.images[order][is_last]
        kept = order[rank < self.depth]
        self.images, self.classes, self.priorities = self.images[kept], self.classes[kept], self.priorities[kept]
