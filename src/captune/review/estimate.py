"""How accurate are the predictions? An estimate with a 95 % interval, from images drawn at random.

Images that were labeled because they are informative say nothing about accuracy: they are neither typical nor
unseen by the classifier. Checks are drawn separately, and never used for adaptation. The n-th check is the image at a
random fraction of all unlabeled images, sorted by predicted class and confidence; the fractions follow a golden-ratio
sequence from a random start. Every image is therefore equally likely to be drawn, so the mean is unbiased whatever
the classifier does later, and the checks are spread evenly over classes and confidences, as in stratified sampling.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from captune.core.arrays import Floats, Ints

FEWEST_LOOKS = 10
GOLDEN = (5**0.5 - 1) / 2
FEWEST_FOR_STRATA = 20
"""With fewer checks the variance within strata cannot be estimated."""


@dataclass(frozen=True)
class AccuracyEstimate:
    """Accuracy estimated from checks, with 95 % intervals; fractions from 0 to 1.

    Attributes:
        n_checks: Number of checked images.
        n_correct: Number of them whose prediction is right.
        accuracy: Estimated accuracy on the images that nobody labeled.
        low: Lower end of its interval.
        high: Upper end of its interval.
        balanced_accuracy: Estimated mean accuracy of the classes among the checks.
        balanced_low: Lower end of its interval.
        balanced_high: Upper end of its interval.
        n_classes: Number of classes among the checks.
    """

    n_checks: int
    n_correct: int
    accuracy: float
    low: float
    high: float
    balanced_accuracy: float
    balanced_low: float
    balanced_high: float
    n_classes: int

    @property
    def sentence(self) -> str:
        """Return the estimate in words."""
        return (
            f"{100 * self.accuracy:.0f} % right ({100 * self.low:.0f} to {100 * self.high:.0f}), "
            f"from {self.n_checks} checked images"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and the sentence as JSON values."""
        return {**asdict(self), "sentence": self.sentence}


def describe_accuracy(accuracy: AccuracyEstimate | Mapping[str, Any] | None, folder: str) -> str:
    """Return the estimated accuracy in words or, without checks, how to get one."""
    if accuracy is None:
        command = f"captune estimate {shlex.quote(folder)} --count {FEWEST_LOOKS} --out checks.csv"
        return f"Names not verified. To find out, check {FEWEST_LOOKS} images: {command}"
    sentence = accuracy.sentence if isinstance(accuracy, AccuracyEstimate) else accuracy["sentence"]
    return f"{sentence}."


def draw_checks(predicted: Ints, confidence: Floats, may_draw: Ints, first: int, count: int, seed: int) -> Ints:
    """Return the next images to check, without repetition; `first` is the number of checks drawn before.

    `may_draw` are the positions of the images that nobody labeled.
    """
    order = may_draw[np.lexsort((confidence[may_draw], predicted[may_draw]))]
    start = np.random.default_rng([seed, 17]).random()
    drawn: dict[int, None] = {}
    for number in range(first, first + 4 * count + 64):
        if len(drawn) == count or len(drawn) == len(order):
            break
        drawn[int(order[int((start + number * GOLDEN) % 1.0 * len(order))])] = None
    return np.fromiter(drawn, dtype=np.int64)


def estimate_accuracy(predicted: Ints, confidence: Floats, truth: Ints) -> AccuracyEstimate | None:
    """Estimate accuracy from checked images: predicted and true classes and confidences, each `(checks,)`."""
    n_checks = len(truth)
    if not n_checks:
        return None
    is_correct = (predicted == truth).astype(np.float64)
    accuracy = float(is_correct.mean())
    low, high = exact_interval(accuracy, n_checks / _design_effect(is_correct, predicted, confidence))
    classes, counts = np.unique(truth, return_counts=True)
    recalls = np.array([is_correct[truth == c].mean() for c in classes])
    # The variance of a mean of recalls; recalls of one or two images are shrunk toward accuracy.
    shrunk = (recalls * counts + 2 * accuracy) / (counts + 2)
    variance = float((shrunk * (1 - shrunk) / counts).sum()) / len(classes) ** 2
    balanced = float(recalls.mean())
    n_balanced = max(1.0, shrunk.mean() * (1 - shrunk.mean()) / variance) if variance > 0 else float(n_checks)
    balanced_low, balanced_high = exact_interval(balanced, n_balanced)
    return AccuracyEstimate(
        n_checks, int(is_correct.sum()), accuracy, low, high, balanced, balanced_low, balanced_high, len(classes)
    )


def _design_effect(is_correct: Any, predicted: Ints, confidence: Floats) -> float:  # noqa: ANN401
    """Return the variance of the mean as a share of that of a simple random sample, at most 1.

    Neighbors in the order by class and confidence were drawn from the same stratum, so half of their squared
    differences estimates the variance within strata.
    """
    n_checks = len(is_correct)
    total = float(is_correct.var())
    if n_checks < FEWEST_FOR_STRATA or total == 0:
        return 1.0
    ordered = is_correct[np.lexsort((confidence, predicted))]
    within = float(np.square(np.diff(ordered)).mean()) / 2
    return float(np.clip(within / (total * n_checks / (n_checks - 1)), 0.5, 1.0))


def exact_interval(share: float, n: float) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson for a share of `n` independent images, which may be a fraction."""
    from scipy.special import betaincinv

    right = share * n
    low = float(betaincinv(right, n - right + 1, 0.025)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, n - right, 0.975)) if right < n else 1.0
    return low, high
