"""Gaussian classes held by their texts: means, variances and shares are re-estimated from all images at once.

Beyond the paper. A class counts its text as `alpha` images, so a class that has few images or none stays where its
text puts it, while a class that has many follows them. All classes share one variance for each dimension, which makes
the decision linear and keeps rare classes from shrinking onto single images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from captune.core.arrays import Floats, Ints, softmax_rows
from captune.core.errors import InputError
from captune.labeling.consensus import NeighborGraph, spread
from captune.labeling.selection import Classes, class_mask

ROWS_AT_ONCE = 16_384
SETTLED = 0.001
"""Clustering ends when a round changes the class of no more than this share of the images."""
FEWEST_SAMPLED, SAMPLED_PER_CLASS, ROUNDS_AFTER_SAMPLE = 16_384, 100, 2
"""Twice as many images and more are clustered as an even sample first, and then all of them for a few rounds."""
SMOOTHING_ROUNDS, SMOOTHING_OWN = 3, 0.3
SMALLEST_VARIANCE = 1e-3
"""As a share of what vectors of length one have in each dimension."""


@dataclass(frozen=True)
class Anchoring:
    """How far the Gaussians may leave their texts.

    Attributes:
        alpha: Images that the text of a class counts as.
        text_weight: How much the class text itself counts in the decision, beside the Gaussian.
        sharpness: Share of the Gaussian's log-density that counts; dimensions are not independent, as it assumes.
        iterations: Most rounds of re-estimation.
        given_weight: Images that the given labels of a class count as together, beside one for each.
    """

    alpha: float = 10.0
    text_weight: float = 0.3
    sharpness: float = 0.3
    iterations: int = 20
    given_weight: float = 20.0


@dataclass(frozen=True, eq=False)
class ClassGaussians:
    """What is known of the classes: means `(classes, width)`, variance `(width,)`, log of shares `(classes,)`."""

    means: Floats
    variance: Floats
    log_shares: Floats

    def rule(self, sharpness: float) -> tuple[Floats, Floats]:
        """Return the linear decision, weights `(classes, width)` and offsets `(classes,)`.

        Terms that all classes share are left out: log N(x; m, v) is x.(m/v) - m.(m/v)/2 and what no class changes.
        """
        weights = np.float32(sharpness) * self.means / self.variance
        offsets = self.log_shares - 0.5 * np.einsum("cd,cd->c", weights, self.means)
        return np.asarray(weights, dtype=np.float32), np.asarray(offsets, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Clustering:
    """The Gaussians, and the probabilities they give to the images without labels, `(images, classes)`."""

    gaussians: ClassGaussians
    probabilities: Floats
    rounds: int


def cluster_images(
    images: Floats,
    texts: Floats,
    logit_scale: float,
    anchoring: Anchoring | None = None,
    *,
    given: Floats | None = None,
    given_labels: Ints | None = None,
    allowed: Classes | None = None,
    graph: NeighborGraph | None = None,
) -> Clustering:
    """Cluster embeddings `(images, width)` around class texts `(classes, width)`, starting from zero-shot.

    Images with given labels count for their class in every round; the others only for allowed classes. With a graph
    the probabilities are mixed with those of neighbors before every estimate.
    """
    anchoring = anchoring or Anchoring()
    given = np.empty((0, texts.shape[1]), dtype=np.float32) if given is None else given
    given_labels = np.empty(0, dtype=np.int64) if given_labels is None else given_labels
    _check(images, texts, given, given_labels)
    blocked = np.where(class_mask(allowed, len(texts)), np.float32(0), np.float32(-np.inf))
    task = _Task(images, np.asarray(texts, dtype=np.float32), logit_scale, given, given_labels, blocked, anchoring)
    n_sampled = max(FEWEST_SAMPLED, SAMPLED_PER_CLASS * len(texts))
    if graph is not None or len(images) < 2 * n_sampled:
        start = task.zero_shot()
        return task.cluster(start, _shares(start), anchoring.iterations, graph)
    rows = np.linspace(0, len(images) - 1, n_sampled).astype(np.int64)
    sample = replace(task, images=images[rows], images_for_each=len(images) / n_sampled)
    start = sample.zero_shot()
    first = sample.cluster(start, _shares(start), anchoring.iterations)
    last = task.cluster(task.assign(first.gaussians), _shares(start), ROUNDS_AFTER_SAMPLE)
    return replace(last, rounds=first.rounds + last.rounds)


def anchor_means(texts: Floats, shares: Floats, center: Floats) -> Floats:
    """Return where the texts would lie among the images, `(classes, width)`.

    Texts and images lie in different parts of the sphere; all texts are moved by one vector, so that their mean,
    weighted by the share of images each class has, falls on the mean of the images.
    """
    return np.asarray(texts + (center - shares @ texts), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class _Task:
    """What is clustered; `blocked` `(classes,)` is minus infinity for classes that only given labels may name."""

    images: Floats
    texts: Floats
    logit_scale: float
    given: Floats
    given_labels: Ints
    blocked: Floats
    anchoring: Anchoring
    images_for_each: float = 1.0

    def zero_shot(self) -> Floats:
        """Return probabilities by text alone, `(images, classes)`."""
        return self._scores(np.float32(self.logit_scale) * self.texts, self.blocked)

    def assign(self, gaussians: ClassGaussians) -> Floats:
        """Return probabilities by Gaussians and texts, `(images, classes)`."""
        weights, offsets = gaussians.rule(self.anchoring.sharpness)
        text_scale = np.float32(self.anchoring.text_weight * self.logit_scale)
        return self._scores(weights + text_scale * self.texts, offsets + self.blocked)

    def cluster(
        self, probabilities: Floats, shares: Floats, most_rounds: int, graph: NeighborGraph | None = None
    ) -> Clustering:
        """Estimate and assign in turn until hardly any image changes its class; `shares` are those of zero-shot."""
        estimate = _Estimate(self, shares)
        labels, rounds = probabilities.argmax(axis=1), 0
        is_settled = False
        while rounds < most_rounds and not is_settled:
            if graph is not None:
                probabilities = spread(probabilities, graph, SMOOTHING_ROUNDS, SMOOTHING_OWN)
            gaussians = estimate(probabilities)
            probabilities = self.assign(gaussians)
            before, labels = labels, probabilities.argmax(axis=1)
            is_settled = int((labels != before).sum()) <= SETTLED * len(labels)
            rounds += 1
        return Clustering(gaussians, probabilities, rounds)

    def _scores(self, weights: Floats, offsets: Floats) -> Floats:
        probabilities = np.empty((len(self.images), len(weights)), dtype=np.float32)
        for start in range(0, len(self.images), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            probabilities[rows] = softmax_rows(self.images[rows] @ weights.T + offsets)
        return probabilities


class _Estimate:
    """Re-estimates the Gaussians; what does not change from round to round is computed once."""

    def __init__(self, task: _Task, shares: Floats) -> None:
        self.images, self.each, self.alpha = task.images, task.images_for_each, task.anchoring.alpha
        given, labels, n_classes = task.given, task.given_labels, len(task.texts)
        self.n_given = np.bincount(labels, minlength=n_classes)
        weights = (1 + task.anchoring.given_weight / np.maximum(self.n_given, 1))[labels].astype(np.float32)
        known = np.zeros((len(given), n_classes), dtype=np.float32)
        known[np.arange(len(given)), labels] = weights
        self.given_counts, self.given_sums = known.sum(axis=0), known.T @ given
        counts = self.each * len(self.images) * shares + self.given_counts
        total = max(float(counts.sum()), 1e-12)
        center = (self.each * self.images.sum(axis=0) + self.given_sums.sum(axis=0)) / total
        self.squares = self.each * np.einsum("id,id->d", self.images, self.images)
        self.squares += np.einsum("i,id,id->d", weights, given, given)
        self.anchors = anchor_means(task.texts, counts / total, center)
        self.smallest = SMALLEST_VARIANCE / given.shape[1]
        # Before the images say more, every dimension varies alike.
        self.anchor_variance = max(float(np.mean(self.squares / total - center**2)), self.smallest)

    def __call__(self, probabilities: Floats) -> ClassGaussians:
        """Return means, variance and shares, each pulled to its anchor with weight alpha / (n + alpha)."""
        found = self.each * probabilities.sum(axis=0)
        counts = found + self.given_counts
        sums = self.each * (probabilities.T @ self.images) + self.given_sums
        means = (sums + self.alpha * self.anchors) / (counts + self.alpha)[:, None]
        # The sum of p (x - m)^2 over images and classes, without a difference for each pair.
        scatter = self.squares - 2 * (means * sums).sum(axis=0) + (counts[:, None] * means**2).sum(axis=0)
        anchored = self.alpha * len(counts)
        variance = (scatter + anchored * self.anchor_variance) / (counts.sum() + anchored)
        shares = found + self.n_given + self.alpha  # a label tells what a class looks like, not how frequent it is
        arrays = (means, np.maximum(variance, self.smallest), np.log(shares / shares.sum()))
        return ClassGaussians(*(np.asarray(array, dtype=np.float32) for array in arrays))


def _shares(probabilities: Floats) -> Floats:
    return np.asarray(probabilities.sum(axis=0) / max(1, len(probabilities)), dtype=np.float32)


def _check(images: Floats, texts: Floats, given: Floats, given_labels: Ints) -> None:
    width = texts.shape[-1]
    if texts.ndim != 2 or images.ndim != 2 or images.shape[1] != width or given.shape != (len(given_labels), width):
        raise InputError(
            "Expected embeddings of images (images, width), texts (classes, width) and labeled images "
            f"({len(given_labels)}, width), got {images.shape}, {texts.shape} and {given.shape}."
        )
    if given_labels.size and not 0 <= given_labels.min() <= given_labels.max() < len(texts):
        raise InputError(
            f"given_labels: expected class ids in 0..{len(texts) - 1}, got {given_labels.min()}..{given_labels.max()}."
        )
