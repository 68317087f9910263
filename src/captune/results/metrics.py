"""Metrics that compare predictions with known labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import harmonic_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Bools, Floats, Ints
from captune.core.errors import InputError, raise_all
from captune.core.text import Displayed

ECE_BINS = 15
LOWEST = 5


@dataclass(frozen=True, repr=False)
class Metrics(Displayed):
    """The quality and balance of predictions; None where there is nothing to measure.

    Attributes:
        n_images: Number of labeled images.
        accuracy: Share of images whose predicted class is their label.
        balanced_accuracy: Mean accuracy of the classes that have images.
        lowest_five: Mean accuracy of the five classes with the lowest accuracy.
        per_class_accuracy: Accuracy of each class, None for a class without images.
        predicted_counts: Number of images predicted as each class.
        never_predicted: Classes that no image is predicted as.
        predicted_imbalance: Largest predicted count divided by the mean count, from 1 to the number of classes.
        ece: Expected calibration error.
        seen_accuracy: Accuracy on images of classes that had labels, predicted over all classes.
        unseen_accuracy: Accuracy on images of the other classes, predicted over all classes.
        harmonic_mean: Harmonic mean of the two.
    """

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
        """Return plain lists and numbers for strict JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    def summary(self) -> dict[str, object]:
        """Return the numbers that matter most."""
        return {
            "images": self.n_images,
            "accuracy": round(self.accuracy, 4),
            "balanced_accuracy": round(self.balanced_accuracy, 4),
            "lowest_five": round(self.lowest_five, 4),
            "never_predicted": len(self.never_predicted),
            "ece": round(self.ece, 4),
        }


def summarize(probabilities: Floats, labels: Ints, n_classes: int, seen: Sequence[int] | Ints | None = None) -> Metrics:
    """Return all metrics of probabilities `(images, classes)`; `seen` lists the classes that had labels."""
    from sklearn.metrics import accuracy_score, recall_score

    _check_probabilities(probabilities, labels, n_classes)
    predicted = probabilities.argmax(axis=1)
    # The accuracy of a class is its recall. balanced_accuracy_score would build a matrix of classes x classes.
    per_class = recall_score(labels, predicted, labels=np.arange(n_classes), average=None, zero_division=np.nan)
    counts = np.bincount(predicted, minlength=n_classes)
    groups: list[float | None] = [None, None]
    if seen is not None:
        _check_range("seen", np.asarray(seen), n_classes)
        is_seen, is_correct = np.isin(labels, seen), predicted == labels
        groups = [_mean_or_none(is_correct[is_seen]), _mean_or_none(is_correct[~is_seen])]
    measured = [value for value in groups if value is not None]
    return Metrics(
        n_images=len(labels),
        accuracy=float(accuracy_score(labels, predicted)),
        balanced_accuracy=float(np.nanmean(per_class)),
        lowest_five=lowest_mean(per_class),
        per_class_accuracy=tuple(None if math.isnan(value) else float(value) for value in per_class),
        predicted_counts=tuple(counts.tolist()),
        never_predicted=tuple(np.flatnonzero(counts == 0).tolist()),
        predicted_imbalance=float(counts.max() / counts.mean()),
        ece=expected_calibration_error(probabilities, labels),
        seen_accuracy=groups[0],
        unseen_accuracy=groups[1],
        harmonic_mean=harmonic_mean(measured) if len(measured) == 2 else None,
    )


def lowest_mean(per_class: NDArray[np.float64], lowest: int = LOWEST) -> float:
    """Return the mean of the lowest accuracies, ignoring nan."""
    known = np.sort(per_class[~np.isnan(per_class)])
    return float(known[:lowest].mean()) if known.size else math.nan


def expected_calibration_error(probabilities: Floats, labels: Ints, bins: int = ECE_BINS) -> float:
    """Return the mean difference between confidence and accuracy over equal-width bins `(low, high]`."""
    _check_probabilities(probabilities, labels, probabilities.shape[-1])
    confidence = probabilities.max(axis=1).astype(np.float64)
    correct = (probabilities.argmax(axis=1) == labels).astype(np.float64)
    inner_edges = np.linspace(0.0, 1.0, bins + 1)[1:-1]
    bin_of_image = np.digitize(confidence, inner_edges, right=True)
    # Per bin (n/N) * |mean correct - mean confidence| is |sum correct - sum confidence| / N.
    gaps = np.bincount(bin_of_image, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def _mean_or_none(values: Bools) -> float | None:
    return float(values.mean()) if values.size else None


def _check_range(name: str, ids: Ints, n_classes: int) -> None:
    if ids.size and not 0 <= ids.min() <= ids.max() < n_classes:
        raise InputError(f"{name}: expected class ids in 0..{n_classes - 1}, got {ids.min()}..{ids.max()}.")


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
