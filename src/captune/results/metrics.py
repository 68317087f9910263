"""Metrics that compare predictions with known labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import harmonic_mean
from typing import Any

import numpy as np

from captune.core.arrays import Floats, Ints
from captune.core.text import Displayed

ECE_BINS = 15
LOWEST = 5


@dataclass(frozen=True, repr=False)
class Metrics(Displayed):
    """The quality and balance of predictions; None where there is nothing to measure.

    Attributes:
        balanced_accuracy: Mean accuracy of the classes that have images.
        lowest_five: Mean accuracy of the five classes with the lowest accuracy.
        never_predicted: Classes that no image is predicted as.
        predicted_imbalance: Largest predicted count divided by the mean count, from 1 to the number of classes.
        ece: Expected calibration error.
        seen_accuracy: Accuracy on images of classes that had labels, predicted over all classes.
        unseen_accuracy: The same of the other classes; `harmonic_mean` is that of the two.
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

    predicted = probabilities.argmax(axis=1)
    is_correct = predicted == labels
    # The accuracy of a class is its recall. balanced_accuracy_score would build a matrix of classes x classes.
    per_class = recall_score(labels, predicted, labels=np.arange(n_classes), average=None, zero_division=np.nan)
    counts = np.bincount(predicted, minlength=n_classes)
    groups: list[float | None] = [None, None]
    if seen is not None:
        is_seen = np.isin(labels, seen)
        groups = [float(is_correct[part].mean()) if part.any() else None for part in (is_seen, ~is_seen)]
    measured = [value for value in groups if value is not None]
    return Metrics(
        n_images=len(labels),
        accuracy=float(accuracy_score(labels, predicted)),
        balanced_accuracy=float(np.nanmean(per_class)),
        lowest_five=float(np.sort(per_class[~np.isnan(per_class)])[:LOWEST].mean()),
        per_class_accuracy=tuple(None if math.isnan(value) else float(value) for value in per_class),
        predicted_counts=tuple(counts.tolist()),
        never_predicted=tuple(np.flatnonzero(counts == 0).tolist()),
        predicted_imbalance=float(counts.max() / counts.mean()),
        ece=expected_calibration_error(probabilities, labels),
        seen_accuracy=groups[0],
        unseen_accuracy=groups[1],
        harmonic_mean=harmonic_mean(measured) if len(measured) == 2 else None,
    )


def expected_calibration_error(probabilities: Floats, labels: Ints, bins: int = ECE_BINS) -> float:
    """Return the mean difference between confidence and accuracy over equal-width bins `(low, high]`."""
    confidence = probabilities.max(axis=1).astype(np.float64)
    correct = (probabilities.argmax(axis=1) == labels).astype(np.float64)
    bin_of_image = np.digitize(confidence, np.linspace(0.0, 1.0, bins + 1)[1:-1], right=True)
    # Per bin (n/N) * |mean correct - mean confidence| is |sum correct - sum confidence| / N.
    gaps = np.bincount(bin_of_image, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))
