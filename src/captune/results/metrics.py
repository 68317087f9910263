"""Numbers that judge predictions against known labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Bools, Floats, Ints
from captune.core.errors import InputError, raise_all

ECE_BINS = 15
LOWEST = 5


@dataclass(frozen=True)
class Metrics:
    """How good and how balanced predictions are; None where there is nothing to measure."""

    n_images: int
    accuracy: float
    balanced_accuracy: float
    lowest_five: float
    per_class_accuracy: tuple[float | None, ...]
    predicted_counts: tuple[int, ...]
    never_predicted: tuple[int, ...]
    predicted_imbalance: float
    ece: float
    seen_accuracy: float | None = None
    unseen_accuracy: float | None = None
    harmonic_mean: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers that strict JSON can hold."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


def accuracy(predicted: Ints, labels: Ints) -> float:
    """Return the share of images whose predicted class is their label."""
    _check_pairs(predicted, labels)
    return float(np.mean(predicted == labels))


def per_class_accuracy(predicted: Ints, labels: Ints, n_classes: int) -> NDArray[np.float64]:
    """Return for every class the share of its images predicted right, nan for a class without images."""
    _check_pairs(predicted, labels, n_classes)
    totals = np.bincount(labels, minlength=n_classes)
    correct = np.bincount(labels[predicted == labels], minlength=n_classes)
    return np.where(totals > 0, correct / np.maximum(totals, 1), np.nan)


def balanced_accuracy(predicted: Ints, labels: Ints, n_classes: int) -> float:
    """Return the mean accuracy over the classes that have images, each class with the same weight."""
    return float(np.nanmean(per_class_accuracy(predicted, labels, n_classes)))


def lowest_mean(per_class: NDArray[np.float64], lowest: int = LOWEST) -> float:
    """Return the mean accuracy of the lowest classes, of all of them when there are fewer."""
    known = np.sort(per_class[~np.isnan(per_class)])
    return float(known[:lowest].mean()) if known.size else math.nan


def group_accuracies(predicted: Ints, labels: Ints, seen: Bools) -> tuple[float, float]:
    """Return the accuracy on images of seen and of unseen classes, nan for a group without images.

    Both are predicted over all classes: a prediction is right only when it is the image's own class.
    """
    _check_pairs(predicted, labels, len(seen))
    correct = predicted == labels
    is_seen = seen[labels]
    return _mean_or_nan(correct[is_seen]), _mean_or_nan(correct[~is_seen])


def harmonic_mean(seen_accuracy: float, unseen_accuracy: float) -> float:
    """Return the harmonic mean of two accuracies, 0 when either is 0 and nan when either is nan."""
    total = seen_accuracy + unseen_accuracy
    return 2.0 * seen_accuracy * unseen_accuracy / total if total != 0.0 else 0.0


def predicted_counts(predicted: Ints, n_classes: int) -> Ints:
    """Return how many images are predicted as each class."""
    _check_range("predicted", predicted, n_classes)
    return np.asarray(np.bincount(predicted, minlength=n_classes), dtype=np.int64)


def never_predicted(predicted: Ints, n_classes: int) -> Ints:
    """Return the ids of the classes that no image is predicted as."""
    return np.asarray(np.flatnonzero(predicted_counts(predicted, n_classes) == 0), dtype=np.int64)


def predicted_imbalance(predicted: Ints, n_classes: int) -> float:
    """Return the largest predicted count over the mean one: 1 is balanced, `n_classes` is a single class.

    The mean is over all classes, so a class that is never predicted counts and nothing is divided by zero.
    """
    counts = predicted_counts(predicted, n_classes)
    if counts.sum() == 0:
        raise InputError("There are no predictions to measure: expected at least one image, got none.")
    return float(counts.max() / counts.mean())


def expected_calibration_error(probabilities: Floats, labels: Ints, bins: int = ECE_BINS) -> float:
    """Return the mean distance between confidence and accuracy over equal-width bins `(low, high]`."""
    _check_probabilities(probabilities, labels, probabilities.shape[-1])
    confidence = probabilities.max(axis=1).astype(np.float64)
    correct = (probabilities.argmax(axis=1) == labels).astype(np.float64)
    inner_edges = np.linspace(0.0, 1.0, bins + 1)[1:-1]
    bin_of_image = np.digitize(confidence, inner_edges, right=True)
    # Per bin (n/N) * |mean correct - mean confidence| is |sum correct - sum confidence| / N.
    gaps = np.bincount(bin_of_image, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def summarize(probabilities: Floats, labels: Ints, n_classes: int, seen: Sequence[int] | Ints | None = None) -> Metrics:
    """Return every metric for probabilities `(images, classes)`; `seen` lists the classes that had labels."""
    _check_probabilities(probabilities, labels, n_classes)
    predicted = np.asarray(probabilities.argmax(axis=1), dtype=np.int64)
    per_class = per_class_accuracy(predicted, labels, n_classes)
    groups = (math.nan, math.nan) if seen is None else group_accuracies(predicted, labels, _mask(seen, n_classes))
    return Metrics(
        n_images=len(labels),
        accuracy=accuracy(predicted, labels),
        balanced_accuracy=balanced_accuracy(predicted, labels, n_classes),
        lowest_five=lowest_mean(per_class),
        per_class_accuracy=tuple(_or_none(value) for value in per_class),
        predicted_counts=tuple(predicted_counts(predicted, n_classes).tolist()),
        never_predicted=tuple(never_predicted(predicted, n_classes).tolist()),
        predicted_imbalance=predicted_imbalance(predicted, n_classes),
        ece=expected_calibration_error(probabilities, labels),
        seen_accuracy=_or_none(groups[0]),
        unseen_accuracy=_or_none(groups[1]),
        harmonic_mean=_or_none(harmonic_mean(*groups)),
    )


def _mean_or_nan(values: Bools) -> float:
    return float(values.mean()) if values.size else math.nan


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _mask(classes: Sequence[int] | Ints, n_classes: int) -> Bools:
    ids = np.asarray(classes, dtype=np.int64)
    _check_range("seen", ids, n_classes)
    mask = np.zeros(n_classes, dtype=np.bool_)
    mask[ids] = True
    return mask


def _check_range(name: str, ids: Ints, n_classes: int) -> None:
    if ids.size and not 0 <= ids.min() <= ids.max() < n_classes:
        raise InputError(f"{name}: expected class ids in 0..{n_classes - 1}, got {ids.min()}..{ids.max()}.")


def _check_pairs(predicted: Ints, labels: Ints, n_classes: int | None = None) -> None:
    if labels.ndim != 1 or predicted.shape != labels.shape or not labels.size:
        raise InputError(
            "predicted and labels: expected two equally long lists of at least one class id, "
            f"got shapes {predicted.shape} and {labels.shape}."
        )
    if n_classes is not None:
        _check_range("labels", labels, n_classes)
        _check_range("predicted", predicted, n_classes)


def _check_probabilities(probabilities: Floats, labels: Ints, n_classes: int) -> None:
    expected = (*labels.shape, n_classes)
    if labels.ndim != 1 or not labels.size or probabilities.shape != expected:
        raise InputError(
            f"probabilities: expected shape {expected} (images, classes) with at least one image, "
            f"got {probabilities.shape}."
        )
    problems = []
    if not np.isfinite(probabilities).all():
        problems.append("some values are not finite")
    elif probabilities.min() < 0.0 or np.abs(probabilities.sum(axis=1, dtype=np.float64) - 1.0).max() > 1e-3:
        problems.append("expected values of at least 0 and rows that sum to 1 (softmax the scores first)")
    raise_all(problems, "These probabilities cannot be measured")
    _check_range("labels", labels, n_classes)
