"""Long tails drawn by a seeded rule, because folders of real users are rarely balanced."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Ints
from captune.core.errors import InputError


def long_tail(labels: Ints, ratio: float, seed: int = 0) -> Ints:
    """Return the images of a long-tailed sample, as ascending positions in `labels` `(images,)`.

    The classes stand in an order drawn by the seed; the one at place i of C keeps n * ratio^(-i / (C - 1)) images,
    where n is the size of the largest class, rounded, at least one and at most what the class has. Which images those
    are is drawn by (seed, class) alone, so a steeper tail is a part of a flatter one. A ratio of 1 keeps n of each.
    """
    if not ratio >= 1:
        raise InputError(f"ratio: expected 1 or more, the largest class over the smallest, got {ratio}.")
    classes, sizes = np.unique(labels, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(classes))
    kept = []
    for place, which in enumerate(order):
        share = ratio ** (-place / max(1, len(classes) - 1))
        n_kept = min(int(sizes[which]), max(1, round(int(sizes.max()) * share)))
        images = np.flatnonzero(labels == classes[which])
        drawn = np.random.default_rng([seed, int(classes[which])]).permutation(images)
        kept.append(drawn[:n_kept])
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64)
