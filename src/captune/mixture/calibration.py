"""How confident the mixture may be, and how far class sizes are evened out."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Floats, evenly_spaced, softmax_rows

CONFIRMED_WEIGHT = 0.5
"""Weight of the share of zero-shot predictions that the mixture confirms in the mean confidence, if it is higher."""
EVENING_STEPS = 10


def find_temperature(scores: Floats, confidence: float) -> float:
    """Return the temperature at which scores `(images, classes)` have the given mean confidence."""
    some = scores[evenly_spaced(len(scores), 1024)]
    low, high = 0.02, 50.0
    for _ in range(20):  # to five digits
        middle = float(np.sqrt(low * high))
        is_too_confident = float(softmax_rows(some / np.float32(middle)).max(axis=1).mean()) > confidence
        low, high = (middle, high) if is_too_confident else (low, middle)
    return float(np.sqrt(low * high))


def mixture_temperature(scores: Floats, text_scores: Floats, accuracy: float, weight: float) -> float:
    """Return the temperature at which mean confidence is zero-shot's, or more if the mixture confirms zero-shot.

    The mixture's own confidence is always high and says little. Texts and images are two sources: if they agree more
    often than zero-shot is confident, part of the difference is added. An accuracy estimated from labels enters with
    its weight.
    """
    before = mean_confidence(text_scores)
    confirmed = float(np.mean(scores.argmax(axis=1) == text_scores.argmax(axis=1)))
    without_labels = before + CONFIRMED_WEIGHT * max(0.0, confirmed - before)
    return find_temperature(scores, (1 - weight) * without_labels + weight * accuracy)


def mean_confidence(scores: Floats) -> float:
    """Return the mean probability of the most probable class."""
    return float(softmax_rows(scores).max(axis=1).mean())


def evening_offsets(scores: Floats, text_scores: Floats) -> Floats:
    """Return class offsets `(classes,)` that even out class sizes as far as wrong labels explain their differences.

    Wrong labels make equal classes look unequal: with a share e of them, sizes vary by about e times their mean. The
    ratio of e^2 to the variance that is seen says how far sizes are drawn to their mean: almost entirely if they
    hardly differ, and not at all if they differ clearly. One minus the mean confidence stands for e.
    """
    rows = evenly_spaced(len(scores), 4096)
    temperature = np.float32(find_temperature(scores, mean_confidence(text_scores[rows])))
    allowed = np.flatnonzero(np.isfinite(scores[0]))
    some = scores[np.ix_(rows, allowed)] / temperature
    probabilities = softmax_rows(some)
    sizes, error = np.bincount(probabilities.argmax(axis=1), minlength=len(allowed)), 1 - probabilities.max(axis=1)
    variation = float(sizes.std() / sizes.mean())
    share = min(1.0, (float(error.mean()) / max(variation, 1e-9)) ** 2)
    target = probabilities.sum(axis=0) ** (1 - share)  # the geometric mean with an even split
    target *= len(rows) / target.sum()
    offsets = np.zeros(len(allowed), dtype=np.float32)
    for _ in range(EVENING_STEPS):
        totals = softmax_rows(some + offsets).sum(axis=0)
        offsets += np.log(np.maximum(target, 1e-9) / np.maximum(totals, 1e-9))
    found = np.zeros(scores.shape[1], dtype=np.float32)
    found[allowed] = temperature * (offsets - offsets.mean())
    return found
