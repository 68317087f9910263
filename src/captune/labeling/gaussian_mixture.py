"""Gaussian mixture anchored at class texts: means, variance and shares are estimated from all images at once.

Beyond the paper. The text of a class counts as `alpha` images, so a class with few or no images stays close to its
text, while a class with many images follows them. All classes share one diagonal covariance, which makes the decision
linear and keeps rare classes from collapsing onto single images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from captune.core.arrays import Floats, Ints, softmax_rows
from captune.core.errors import InputError
from captune.labeling.neighborhood import NeighborGraph, propagate
from captune.labeling.selection import Classes, class_mask

ROWS_AT_ONCE = 16_384
TOLERANCE = 0.001
"""The estimation ends when a round changes the class of no more than this share of the images."""
FEWEST_SAMPLED, SAMPLED_PER_CLASS, ROUNDS_AFTER_SAMPLE = 16_384, 100, 2
"""With at least twice as many images, the mixture is fitted to a sample first and then refined on all images."""
SMOOTHING_ROUNDS, SMOOTHING_OWN = 3, 0.3
SMALLEST_VARIANCE = 1e-3
"""As a share of the mean variance that unit vectors have in each dimension."""


@dataclass(frozen=True)
class Anchoring:
    """How strongly the mixture is anchored at the class texts and the labeled images.

    Attributes:
        alpha: Number of images that the text of a class counts as.
        text_weight: Weight of the class text in the decision, next to the Gaussian.
        sharpness: Weight of the Gaussian log-density; below 1, since dimensions are not independent.
        iterations: Maximum number of estimation rounds.
        labeled_weight: Number of images that the labeled images of a class count as, in addition to themselves.
    """

    alpha: float = 10.0
    text_weight: float = 0.3
    sharpness: float = 0.3
    iterations: int = 20
    labeled_weight: float = 20.0


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """Means `(classes, width)`, shared variance `(width,)` and log of the class shares `(classes,)`."""

    means: Floats
    variance: Floats
    log_shares: Floats

    def linear_rule(self, sharpness: float) -> tuple[Floats, Floats]:
        """Return the decision as weights `(classes, width)` and offsets `(classes,)`.

        log N(x; m, v) is x.(m/v) - m.(m/v)/2 plus terms that are the same for all classes and are left out.
        """
        weights = np.float32(sharpness) * self.means / self.variance
        offsets = self.log_shares - 0.5 * np.einsum("cd,cd->c", weights, self.means)
        return np.asarray(weights, dtype=np.float32), np.asarray(offsets, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """A fitted mixture, the probabilities of the unlabeled images `(images, classes)`, and the rounds it took."""

    mixture: GaussianMixture
    probabilities: Floats
    rounds: int


def fit_gaussian_mixture(
    images: Floats,
    texts: Floats,
    logit_scale: float,
    anchoring: Anchoring | None = None,
    *,
    labeled: Floats | None = None,
    labels: Ints | None = None,
    allowed: Classes | None = None,
    graph: NeighborGraph | None = None,
) -> MixtureFit:
    """Fit a mixture to embeddings `(images, width)`, anchored at class texts `(classes, width)`.

    The estimation starts from zero-shot probabilities. Labeled images count for their class in every round, unlabeled
    images only for allowed classes. With a graph, probabilities are propagated to neighbors before each estimation.
    """
    anchoring = anchoring or Anchoring()
    labeled = np.empty((0, texts.shape[1]), dtype=np.float32) if labeled is None else labeled
    labels = np.empty(0, dtype=np.int64) if labels is None else labels
    _check(images, texts, labeled, labels)
    blocked = np.where(class_mask(allowed, len(texts)), np.float32(0), np.float32(-np.inf))
    problem = _Problem(images, np.asarray(texts, dtype=np.float32), logit_scale, labeled, labels, blocked, anchoring)
    n_sampled = max(FEWEST_SAMPLED, SAMPLED_PER_CLASS * len(texts))
    if graph is not None or len(images) < 2 * n_sampled:
        start = problem.zero_shot()
        return problem.fit(start, _shares(start), anchoring.iterations, graph)
    rows = np.linspace(0, len(images) - 1, n_sampled).astype(np.int64)
    sample = replace(problem, images=images[rows], image_weight=len(images) / n_sampled)
    start = sample.zero_shot()
    first = sample.fit(start, _shares(start), anchoring.iterations)
    last = problem.fit(problem.predict(first.mixture), _shares(start), ROUNDS_AFTER_SAMPLE)
    return replace(last, rounds=first.rounds + last.rounds)


def anchor_means(texts: Floats, shares: Floats, center: Floats) -> Floats:
    """Return the class texts shifted to where the images lie, `(classes, width)`.

    Texts and images lie in different regions of the sphere. One vector shifts all texts, so that their mean, weighted
    by the share of images in each class, falls on the mean of the images.
    """
    return np.asarray(texts + (center - shares @ texts), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class _Problem:
    """The data to fit; `blocked` `(classes,)` is minus infinity for classes that unlabeled images cannot have."""

    images: Floats
    texts: Floats
    logit_scale: float
    labeled: Floats
    labels: Ints
    blocked: Floats
    anchoring: Anchoring
    image_weight: float = 1.0

    def zero_shot(self) -> Floats:
        """Return probabilities by text alone, `(images, classes)`."""
        return self._probabilities(np.float32(self.logit_scale) * self.texts, self.blocked)

    def predict(self, mixture: GaussianMixture) -> Floats:
        """Return probabilities by mixture and texts, `(images, classes)`."""
        weights, offsets = mixture.linear_rule(self.anchoring.sharpness)
        text_scale = np.float32(self.anchoring.text_weight * self.logit_scale)
        return self._probabilities(weights + text_scale * self.texts, offsets + self.blocked)

    def fit(
        self, probabilities: Floats, shares: Floats, max_rounds: int, graph: NeighborGraph | None = None
    ) -> MixtureFit:
        """Alternate estimation and prediction until hardly any image changes its class."""
        estimator = _Estimator(self, shares)
        labels, rounds = probabilities.argmax(axis=1), 0
        has_converged = False
        while rounds < max_rounds and not has_converged:
            if graph is not None:
                probabilities = propagate(probabilities, graph, SMOOTHING_ROUNDS, SMOOTHING_OWN)
            mixture = estimator(probabilities)
            probabilities = self.predict(mixture)
            before, labels = labels, probabilities.argmax(axis=1)
            has_converged = int((labels != before).sum()) <= TOLERANCE * len(labels)
            rounds += 1
        return MixtureFit(mixture, probabilities, rounds)

    def _probabilities(self, weights: Floats, offsets: Floats) -> Floats:
        probabilities = np.empty((len(self.images), len(weights)), dtype=np.float32)
        for start in range(0, len(self.images), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            probabilities[rows] = softmax_rows(self.images[rows] @ weights.T + offsets)
        return probabilities


class _Estimator:
    """Estimates the mixture from probabilities; whatever stays the same in all rounds is computed once."""

    def __init__(self, problem: _Problem, shares: Floats) -> None:
        self.images, self.weight, self.alpha = problem.images, problem.image_weight, problem.anchoring.alpha
        labeled, labels, n_classes = problem.labeled, problem.labels, len(problem.texts)
        self.n_labeled = np.bincount(labels, minlength=n_classes)
        weights = (1 + problem.anchoring.labeled_weight / np.maximum(self.n_labeled, 1))[labels].astype(np.float32)
        known = np.zeros((len(labeled), n_classes), dtype=np.float32)
        known[np.arange(len(labeled)), labels] = weights
        self.labeled_counts, self.labeled_sums = known.sum(axis=0), known.T @ labeled
        counts = self.weight * len(self.images) * shares + self.labeled_counts
        total = max(float(counts.sum()), 1e-12)
        center = (self.weight * self.images.sum(axis=0) + self.labeled_sums.sum(axis=0)) / total
        self.squares = self.weight * np.einsum("id,id->d", self.images, self.images)
        self.squares += np.einsum("i,id,id->d", weights, labeled, labeled)
        self.anchors = anchor_means(problem.texts, counts / total, center)
        self.smallest = SMALLEST_VARIANCE / labeled.shape[1]
        # The prior variance is the same in every dimension.
        self.anchor_variance = max(float(np.mean(self.squares / total - center**2)), self.smallest)

    def __call__(self, probabilities: Floats) -> GaussianMixture:
        """Return means, variance and shares, each shrunk to its anchor with weight alpha / (n + alpha)."""
        found = self.weight * probabilities.sum(axis=0)
        counts = found + self.labeled_counts
        sums = self.weight * (probabilities.T @ self.images) + self.labeled_sums
        means = (sums + self.alpha * self.anchors) / (counts + self.alpha)[:, None]
        # The sum of p (x - m)^2 over images and classes, without forming the difference for each pair.
        scatter = self.squares - 2 * (means * sums).sum(axis=0) + (counts[:, None] * means**2).sum(axis=0)
        anchored = self.alpha * len(counts)
        variance = (scatter + anchored * self.anchor_variance) / (counts.sum() + anchored)
        shares = found + self.n_labeled + self.alpha  # labels show how a class looks, not how frequent it is
        arrays = (means, np.maximum(variance, self.smallest), np.log(shares / shares.sum()))
        return GaussianMixture(*(np.asarray(array, dtype=np.float32) for array in arrays))


def _shares(probabilities: Floats) -> Floats:
    return np.asarray(probabilities.sum(axis=0) / max(1, len(probabilities)), dtype=np.float32)


def _check(images: Floats, texts: Floats, labeled: Floats, labels: Ints) -> None:
    width = texts.shape[-1]
    if texts.ndim != 2 or images.ndim != 2 or images.shape[1] != width or labeled.shape != (len(labels), width):
        raise InputError(
            "Expected embeddings of images (images, width), texts (classes, width) and labeled images "
            f"({len(labels)}, width), got {images.shape}, {texts.shape} and {labeled.shape}."
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < len(texts):
        raise InputError(f"labels: expected class ids in 0..{len(texts) - 1}, got {labels.min()}..{labels.max()}.")
