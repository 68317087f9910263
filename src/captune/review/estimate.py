"""How accurate are the predictions? An estimate with a 95% interval, from images drawn at random.

Images that were labeled because they are informative say nothing about accuracy: they are neither typical nor
unseen by the classifier. Checks are drawn separately, and never used for adaptation. Every image has a random number
that depends on its embedding and the random seed alone, and checks are handed out by this number, smallest first. So
the sample is independent of names, predictions and answers, whatever the classifier does later, and images that are
added to a run take their place among the others.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from captune.core.arrays import Bools, Floats, Ints

FEWEST_CHECKS = 10


@dataclass(frozen=True)
class AccuracyEstimate:
    """Accuracy estimated from checks, with 95% intervals; fractions from 0 to 1, NaN without checks.

    `balanced_accuracy` is the mean accuracy of the `n_classes` classes among the checks.
    """

    n_checks: int = 0
    n_correct: int = 0
    accuracy: float = math.nan
    low: float = math.nan
    high: float = math.nan
    balanced_accuracy: float = math.nan
    balanced_low: float = math.nan
    balanced_high: float = math.nan
    n_classes: int = 0

    def __bool__(self) -> bool:
        return self.n_checks > 0

    @property
    def sentence(self) -> str:
        """Return the estimate in words."""
        if not self:
            return "names not verified: nobody checked an image"
        return (
            f"{100 * self.accuracy:.0f}% right ({100 * self.low:.0f} to {100 * self.high:.0f}), "
            f"from {self.n_checks} checked images"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and the sentence as JSON values."""
        fields = {name: None if math.isnan(value) else value for name, value in asdict(self).items()}
        return {**fields, "sentence": self.sentence}


def describe_accuracy(accuracy: AccuracyEstimate | Mapping[str, Any] | None, folder: str) -> str:
    """Return the estimated accuracy in words or, without checks, how to get one."""
    if not accuracy:
        command = f"captune estimate {shlex.quote(folder)} --count {FEWEST_CHECKS} --out checks.csv"
        return f"Names not verified. To find out, check {FEWEST_CHECKS} images: {command}"
    sentence = accuracy.sentence if isinstance(accuracy, AccuracyEstimate) else accuracy["sentence"]
    return f"{sentence}."


def random_numbers(vectors: Floats, seed: int) -> Ints:
    """Return a random number for each image, which depends on its embedding and the seed alone; copies differ."""
    key, n_seen, numbers = str(seed).encode()[:64], Counter[bytes](), list[bytes]()
    for row in vectors + np.float32(0):  # -0 is 0
        image = blake2b(row.tobytes(), digest_size=16, key=key).digest()
        numbers.append(blake2b(image + n_seen[image].to_bytes(8, "big"), digest_size=8).digest())
        n_seen[image] += 1
    return np.frombuffer(b"".join(numbers), dtype=">i8").astype(np.int64)


def draw_checks(numbers: Ints, may_draw: Bools, count: int) -> Ints:
    """Return the next images to check among those that may be drawn, both `(images,)`."""
    free = np.flatnonzero(may_draw)
    return free[np.argsort(numbers[free], kind="stable")[:count]]


def estimate_accuracy(predicted: Ints, truth: Ints) -> AccuracyEstimate:
    """Estimate accuracy from the predicted and true classes of checked images, each `(checks,)`.

    An image that fits none of the classes, or is predicted so, has the class `NONE_ID`.
    """
    n_checks = len(truth)
    if not n_checks:
        return AccuracyEstimate()
    is_correct = (predicted == truth).astype(np.float64)
    accuracy = float(is_correct.mean())
    low, high = exact_interval(accuracy, n_checks)
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


def exact_interval(share: float, n: float) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson for a share of `n` independent images, which may be a fraction."""
    from scipy.special import betaincinv

    right = share * n
    low = float(betaincinv(right, n - right + 1, 0.025)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, n - right, 0.975)) if right < n else 1.0
    return low, high
