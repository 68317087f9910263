"""Deferred acceptance: give each image at most one class, and each class at most its quota of images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from captune.core.arrays import Bools, Floats, Ints

_ROWS_AT_ONCE = 8192


def assign(preferences: Floats, priorities: Floats, quota: Ints) -> tuple[Ints, Ints]:
    """Return the placed images in order and the class of each, by deferred acceptance.

    Every image proposes to the class it prefers most; a class keeps, up to its quota, the proposals of
    highest priority; the refused propose to their next class, until placed or out of classes. `preferences`
    and `priorities` are `(images, classes)`; a preference of minus infinity is never proposed. Ties go to the
    image that comes first and to the class that comes first.

    When both matrices are the same, this is the only stable assignment, and equals walking through all pairs
    from the highest score down and keeping a pair whenever its image is free and its class has a place left.
    """
    n_images, n_classes = preferences.shape
    class_of_image = np.full(n_images, -1, dtype=np.int64)
    bar = _Bar(
        np.where(quota > 0, -np.inf, np.inf).astype(priorities.dtype),
        np.full(n_classes, n_images, dtype=np.int64),
    )
    unplaced = np.arange(n_images, dtype=np.int64)
    while unplaced.size:
        choice = _next_choice(preferences, priorities, unplaced, bar)
        has_choice = choice >= 0
        class_of_image[unplaced[has_choice]] = choice[has_choice]
        asked = np.zeros(n_classes + 1, dtype=np.bool_)
        asked[choice[has_choice]] = True
        # The last entry of `asked` is False and stands for images without a class (index -1).
        members = np.flatnonzero(asked[class_of_image])
        unplaced = _refused(members, class_of_image[members], priorities, quota, bar)
        class_of_image[unplaced] = -1
    placed = np.flatnonzero(class_of_image >= 0)
    return np.asarray(placed, dtype=np.int64), class_of_image[placed]


@dataclass
class _Bar:
    """What a newcomer must beat: nothing while a class has places left, then the least of what it keeps."""

    priority: Floats
    image: Ints

    def is_beaten(self, priority: Floats, images: Ints) -> Bools:
        above = priority > self.priority
        level = priority == self.priority
        if level.any():
            above |= level & (images[:, None] < self.image)
        return np.asarray(above, dtype=np.bool_)


def _next_choice(preferences: Floats, priorities: Floats, images: Ints, bar: _Bar) -> Ints:
    """Return for every image the preferred class that would take it now, or -1.

    A bar only ever rises, so a class that would refuse an image now has either refused it or always will.
    """
    choice = np.full(len(images), -1, dtype=np.int64)
    for start in range(0, len(images), _ROWS_AT_ONCE):
        rows = images[start : start + _ROWS_AT_ONCE]
        wanted = preferences[rows]
        priority = wanted if priorities is preferences else priorities[rows]
        open_preferences = np.where(bar.is_beaten(priority, rows), wanted, -np.inf)
        best = open_preferences.argmax(axis=1)
        is_open = open_preferences[np.arange(len(rows)), best] > -np.inf
        choice[start : start + _ROWS_AT_ONCE] = np.where(is_open, best, -1)
    return choice


def _refused(members: Ints, classes: Ints, priorities: Floats, quota: Ints, bar: _Bar) -> Ints:
    """Return the members that exceed the quotas of their classes, and raise the bars of the full ones."""
    priority = priorities[members, classes]
    order = np.lexsort((members, -priority, classes))
    members, classes, priority = members[order], classes[order], priority[order]
    starts = np.searchsorted(classes, np.arange(len(quota)))
    rank = np.arange(len(members)) - starts[classes]
    last = rank == quota[classes] - 1
    bar.priority[classes[last]] = priority[last]
    bar.image[classes[last]] = members[last]
    return np.asarray(members[rank >= quota[classes]], dtype=np.int64)
