"""Deferred acceptance: assign each image to at most one class, and to each class at most its quota of images."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Bools, Floats, Ints

ROWS_AT_ONCE = 8192


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
    # What a proposal must beat: nothing while a class has room, then the weakest proposal that it keeps.
    cutoffs = np.where(quota > 0, -np.inf, np.inf).astype(priorities.dtype)
    cutoff_images = np.full(n_classes, n_images, dtype=np.int64)

    def next_choice(images: Ints) -> Ints:
        """Return the most preferred class that would accept each image now, or -1: cutoffs only rise."""
        wanted = preferences[images]
        priority = wanted if priorities is preferences else priorities[images]
        is_beaten = (priority > cutoffs) | ((priority == cutoffs) & (images[:, None] < cutoff_images))
        wanted = np.where(is_beaten, wanted, -np.inf)
        best = wanted.argmax(axis=1)
        return np.where(wanted[np.arange(len(images)), best] > -np.inf, best, -1)

    unassigned = np.arange(n_images, dtype=np.int64)
    while unassigned.size:
        parts = np.split(unassigned, np.arange(ROWS_AT_ONCE, len(unassigned), ROWS_AT_ONCE))
        class_of_image[unassigned] = np.concatenate([next_choice(part) for part in parts])
        proposed: Bools = np.zeros(n_classes + 1, dtype=np.bool_)
        proposed[class_of_image[unassigned]] = True
        proposed[-1] = False  # -1: no class would accept the image
        members = np.flatnonzero(proposed[class_of_image])
        classes = class_of_image[members]
        priority = priorities[members, classes]
        order = np.lexsort((members, -priority, classes))
        members, classes, priority = members[order], classes[order], priority[order]
        rank = np.arange(len(members)) - np.searchsorted(classes, classes)
        is_last = rank == quota[classes] - 1
        cutoffs[classes[is_last]] = priority[is_last]
        cutoff_images[classes[is_last]] = members[is_last]
        unassigned = np.asarray(members[rank >= quota[classes]], dtype=np.int64)
        class_of_image[unassigned] = -1
    assigned = np.flatnonzero(class_of_image >= 0)
    return np.asarray(assigned, dtype=np.int64), class_of_image[assigned]
