"""Which images get which pseudo-label: pure functions of scores `(images, classes)`.

All of them return images in order and use each image at most once; ties go to the image that comes first.
The `image_index` of a result holds rows of the scores: `reindexed` turns them into positions in a collection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from captune.core.arrays import Bools, Floats, Ints
from captune.core.errors import InputError
from captune.core.scratch import fill_rows, row_parts
from captune.labeling.leading import Scores, assign_some
from captune.labeling.pseudo_labels import PseudoLabels

Classes: TypeAlias = Sequence[int] | Ints

_ROWS_AT_ONCE = 8192


def class_mask(classes: Classes | None, n_classes: int) -> Bools:
    """Return which classes are listed; None lists all."""
    if classes is None:
        return np.ones(n_classes, dtype=np.bool_)
    ids = np.asarray(classes, dtype=np.int64)
    if not ids.size or not 0 <= ids.min() <= ids.max() < n_classes:
        listed = f"{ids.min()}..{ids.max()}" if ids.size else "none"
        raise InputError(f"allowed: expected at least one class id, all in 0..{n_classes - 1}, got {listed}.")
    mask = np.zeros(n_classes, dtype=np.bool_)
    mask[ids] = True
    return mask


def given_allowed(probabilities: Floats, allowed: Classes | None) -> Floats:
    """Return the probabilities given that the image is of an allowed class: the others 0, rows summing to 1.

    A row without any mass on the allowed classes stays zero. Without `allowed`, the input itself is returned.
    """
    _check_scores(probabilities)
    if allowed is None:
        return probabilities
    mask = class_mask(allowed, probabilities.shape[1])

    def part(rows: slice) -> Floats:
        kept = np.where(mask, probabilities[rows], 0.0)
        mass = kept.sum(axis=1, keepdims=True)
        return np.asarray(kept / np.where(mass > 0, mass, 1.0), dtype=np.float32)

    return fill_rows(len(probabilities), len(mask), part)


def top_k_per_class(
    scores: Floats, k: int | Ints, allowed: Classes | None = None, predicted_only: bool = False
) -> PseudoLabels:
    """Return the k images of highest score for every allowed class, each image in one class only.

    An image that is among the top of several classes goes to the class it scores highest in, and the place
    it leaves goes to the next image (and so on: `assign` with the scores on both sides). A class gets fewer
    than k images only when no free image is left for it. `k` may differ by class. With `predicted_only` a
    class takes only images that score highest in it, among the allowed classes.
    """
    n_classes = _check_scores(scores)
    quota = _quota(k, n_classes)
    mask = class_mask(allowed, n_classes)

    def eligible(rows: slice | Ints) -> Floats:
        masked = np.where(mask, scores[rows], np.float32(-np.inf))
        if not predicted_only:
            return masked
        best = masked.argmax(axis=1)[:, None]
        only = np.full_like(masked, -np.inf)
        np.put_along_axis(only, best, np.take_along_axis(masked, best, axis=1), axis=1)
        return only

    return _pools(len(scores), eligible, quota)


def above_threshold(probabilities: Floats, tau: float, allowed: Classes | None = None) -> PseudoLabels:
    """Return every image whose most probable allowed class has a probability of at least tau."""
    given = given_allowed(probabilities, allowed)
    labels = np.asarray(given.argmax(axis=1), dtype=np.int64)
    confidence = given[np.arange(len(given)), labels]
    chosen = np.flatnonzero((confidence >= tau) & class_mask(allowed, given.shape[1])[labels])
    return PseudoLabels.create(chosen, labels[chosen], confidence[chosen], given.shape[1])


def candidate_sets(probabilities: Floats, alpha: float, beta: float, allowed: Classes | None = None) -> Bools:
    """Return which classes each image may be of, `(images, classes)`, by the two rules of CPL.

    Within the image: from the most probable class on, while their sum is at most the alpha-quantile of all
    images' highest probabilities, and the class that exceeds it; classes of equal probability stay together.
    Between images: only if the probability is at least the beta-quantile of that class over all images. An
    image may be left without any class.
    """
    given = given_allowed(probabilities, allowed)
    _check_share("alpha", alpha)
    _check_share("beta", beta)
    if not len(given):
        return np.zeros(given.shape, dtype=np.bool_)
    enough = np.quantile(given.max(axis=1).astype(np.float64), alpha)
    mask = class_mask(allowed, given.shape[1])
    candidates = np.zeros(given.shape, dtype=np.bool_)
    for start in range(0, len(given), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        candidates[rows] = _within_image(given[rows], enough) & mask
    for column in np.flatnonzero(mask):
        values = given[:, column].astype(np.float64)
        candidates[:, column] &= values >= np.quantile(values, beta)
    return candidates


def balanced_pools(probabilities: Floats, candidates: Bools, k: int | Ints) -> PseudoLabels:
    """Return at most k images per class, each placed in one of its candidate classes by deferred acceptance.

    The label is the pool an image was placed in; its candidates go with it. Images without a candidate, or
    refused by all of them, are left out.
    """
    n_classes = _check_scores(probabilities)
    if candidates.shape != probabilities.shape:
        raise InputError(f"candidates: expected shape {probabilities.shape}, got {candidates.shape}.")
    pools = _pools(
        len(probabilities),
        lambda rows: np.where(candidates[rows], probabilities[rows], np.float32(-np.inf)),
        _quota(k, n_classes),
    )
    return PseudoLabels.create(
        pools.image_index,
        pools.labels,
        pools.confidence,
        n_classes,
        candidates=candidates[pools.image_index],
    )


def growing_k(round_number: int, n_rounds: int, n_images: int, n_classes: int) -> int:
    """Return how many images each class gets in a round of GRIP and CPL, from 1; at least one, at most all.

    In round i of n it is i * floor(images / n) / classes, rounded down.
    """
    return max(1, min(round_number * (n_images // n_rounds) // n_classes, n_images // n_classes))


def _within_image(given: Floats, enough: float) -> Bools:
    ranked = np.sort(given, axis=1)[:, ::-1].astype(np.float64)
    sum_before = np.cumsum(ranked, axis=1)[:, :-1]
    n_kept = 1 + (sum_before <= enough).sum(axis=1)
    least = ranked[np.arange(len(ranked)), n_kept - 1]
    return np.asarray(given >= least[:, None], dtype=np.bool_)


def _pools(n_images: int, eligible: Callable[[slice | Ints], Floats], quota: Ints) -> PseudoLabels:
    """Place images by their scores; minus infinity marks the classes that an image cannot be placed in."""

    def scores_of(rows: slice | Ints) -> Scores:
        masked = eligible(rows)
        return Scores(masked, masked)

    images, labels, confidence = assign_some(n_images, scores_of, quota)
    return PseudoLabels.create(images, labels, np.asarray(confidence, dtype=np.float32), len(quota))


def _quota(k: int | Ints, n_classes: int) -> Ints:
    quota = np.broadcast_to(np.asarray(k, dtype=np.int64), (n_classes,))
    if quota.min() < 0:
        raise InputError(f"k: expected 0 or more images per class, got {quota.min()}.")
    return quota


def _check_scores(scores: Floats) -> int:
    if scores.ndim != 2 or scores.shape[1] < 1:
        raise InputError(f"scores: expected shape (images, classes), got {scores.shape}.")
    if any(np.isnan(scores[rows]).any() for rows in row_parts(len(scores), scores.shape[1])):
        raise InputError("scores: expected numbers, got nan.")
    return int(scores.shape[1])


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InputError(f"{name}: expected a number from 0 to 1, got {value}.")
