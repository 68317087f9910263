"""Gaussian mixture next to the class texts: classes are estimated from all images at once, without labels.

Beyond the paper. All classes share one full covariance, shrunk toward a multiple of the identity, so directions that
vary within every class (pose, background) count little and the decision is linear. The texts stay in the decision with
their full weight. The weight of the mixture grows with the number of images per class name: small with four images per
class, and three times that of the texts with hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le
from numpy.typing import ArrayLike

from captune.core.arrays import (
    Bools,
    Floats,
    Ints,
    as_embeddings,
    canonical_order,
    empty_rows,
    evenly_spaced,
    fill_rows,
    row_parts,
    softmax_rows,
    take_rows,
)
from captune.core.errors import InputError
from captune.core.runtime import threads_for
from captune.core.settings import NonNegativeFloat, Positive
from captune.labeling.selection import Classes, class_mask
from captune.mixture.absent_names import find_absent
from captune.mixture.calibration import evening_offsets, find_temperature, mean_confidence, mixture_temperature
from captune.mixture.label_evidence import LabelEvidence, gather_evidence

TOLERANCE = 0.001
"""The estimation ends when a round changes the class of no more than this share of the images."""
FEWEST_SAMPLED, SAMPLED_PER_CLASS, ROUNDS_AFTER_SAMPLE = 2048, 20, 2
"""With at least twice as many images, the mixture is fitted to a sample first and then refined on all images."""
LABELED_ROUNDS, ROUNDS_HALVED_AT = 6, 1 / 16
"""Rounds drift away from the labels, so labels reduce them: to half with one label per sixteen classes, and so on, down
to this number."""
FEWEST_TESTED, N_FOLDS = 10, 5
"""Number of labels from which cross-validation sets the confidence of the mixture, and its folds. Half of a few labels
would achieve much less than all of them."""
MOST_COUNTED = 4096
"""Number of images by which absent names are found."""
IMPROBABLE = 0.001
"""Probability that an absent name does not exceed for any image."""
SMALLEST_VARIANCE = 1e-3
"""As a share of the mean variance that unit vectors have in each dimension."""


@dataclass(frozen=True)
class MixtureSettings:
    """How far the mixture may depart from the class texts.

    Attributes:
        image_weight: Spread of the mixture's scores over the classes as a multiple of the text scores' spread, in the
            limit of many images per class name.
        half_weight_at: Images per class name at which half of `image_weight` is used.
        shrinkage: Share of the covariance that is replaced by its mean variance.
        alpha: Number of images that the zero-shot estimate of a class counts as.
        even_out: Whether class sizes are evened out as far as wrong labels explain that they differ.
        labeled_weight: Number of images that each labeled image counts as.
        iterations: Maximum number of estimation rounds before class sizes are evened out, and after.
        absent_names: Whether names that no image seems to show are left out.
    """

    image_weight: NonNegativeFloat = 3.0
    half_weight_at: NonNegativeFloat = 16.0
    shrinkage: Annotated[float, Gt(0), Le(1)] = 0.8
    alpha: Annotated[float, Gt(0)] = 20.0
    even_out: bool = True
    labeled_weight: NonNegativeFloat = 5.0
    iterations: Positive = 30
    absent_names: bool = True


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """A fitted mixture as a linear rule, and what it predicts for the unlabeled images.

    Attributes:
        weights: Image part of the decision, `(classes, width)`; the scaled class texts are added to it.
        offsets: Constant part of the decision, `(classes,)`.
        temperature: What scores are divided by, so that confidence stays comparable to zero-shot or, with many labels,
            to the accuracy that they tell.
        probabilities: Probabilities of the unlabeled images, `(images, classes)`.
        rounds: Number of estimation rounds.
        evening: The part of the offsets that evens out the class sizes, `(classes,)`.
        is_absent: Which names no image seems to show, `(classes,)`; empty if all are shown.
    """

    weights: Floats
    offsets: Floats
    temperature: float
    probabilities: Floats
    rounds: int
    evening: Floats
    is_absent: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))


def fit_gaussian_mixture(
    image_embeddings: ArrayLike,
    class_embeddings: ArrayLike,
    logit_scale: float = 100.0,
    settings: MixtureSettings | None = None,
    *,
    labeled: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    is_single: ArrayLike | None = None,
    allowed: Classes | None = None,
) -> MixtureFit:
    """Fit a mixture to embeddings `(images, width)`, starting from class texts `(classes, width)`.

    Labeled images count for their class in every round, unlabeled images only for allowed classes. The rule itself
    covers all classes. Labels that were given singly (all by default) set the temperature too.

    Examples:
        By their texts, images of the second cluster look like class 0; the mixture tells the clusters apart.

        >>> import numpy as np
        >>> images = np.repeat([[1.0, 0.2, 0.0], [0.6, 1.0, 0.0]], 50, axis=0)
        >>> images += 0.05 * np.random.default_rng(0).normal(size=images.shape)
        >>> texts = np.array([[0.9, 0.6, 0.2], [0.3, 1.0, 0.6]])
        >>> np.bincount((images @ texts.T).argmax(axis=1), minlength=2)
        array([61, 39])
        >>> np.bincount(fit_gaussian_mixture(images, texts).probabilities.argmax(axis=1), minlength=2)
        array([50, 50])
    """
    images, texts = as_embeddings(image_embeddings, "images"), as_embeddings(class_embeddings, "classes")
    known = np.empty((0, texts.shape[1]), np.float32) if labeled is None else as_embeddings(labeled, "labeled images")
    ids = np.asarray([] if labels is None else labels, dtype=np.int64)
    _check(images, texts, known, ids)
    single = np.ones(len(ids), dtype=np.bool_) if is_single is None else np.asarray(is_single, dtype=np.bool_)
    blocked = np.where(class_mask(allowed, len(texts)), np.float32(0), np.float32(-np.inf))
    # The same images in another order have the same result: their samples and sums are those of the canonical order.
    order, known_order = canonical_order(images), canonical_order(known)
    images, known, ids, single = take_rows(images, order), known[known_order], ids[known_order], single[known_order]
    rule = settings or MixtureSettings()
    problem = _Problem(images, texts, logit_scale, rule, known, ids, single, blocked, texts[:0])
    with threads_for(images.size * max(texts.shape)):
        is_absent = problem.find_absent() if problem.settings.absent_names else np.zeros(len(texts), dtype=np.bool_)
        found = problem.among(~is_absent).solve()
        if is_absent.any():
            found = problem.with_absent(found, is_absent)
    return replace(found, probabilities=take_rows(found.probabilities, np.argsort(order)))


@dataclass(frozen=True, eq=False)
class _Start:
    """What all rounds share; `means` `(classes, width)` are weighted by zero-shot probabilities and centered."""

    center: Floats
    covariance: Floats
    means: Floats
    evidence: LabelEvidence


@dataclass(frozen=True, eq=False)
class _Problem:
    """What is fitted.

    Attributes:
        blocked: Minus infinity for classes that only labeled images may have, `(classes,)`.
        count_of_each: Number of images that each image stands for.
        tested: Accuracy by cross-validation of the labels, and its weight, both from 0 to 1.
        moments: Mean and covariance of the images, if they are known.
        absent: Texts of names that no image seems to show, `(names, width)`; they are not among `texts`.
    """

    images: Floats
    texts: Floats
    logit_scale: float
    settings: MixtureSettings
    labeled: Floats
    labels: Ints
    is_single: Bools
    blocked: Floats
    absent: Floats
    count_of_each: float = 1.0
    tested: tuple[float, float] = (0.0, 0.0)
    moments: tuple[Floats, Floats] | None = None

    def find_absent(self) -> Bools:
        """Return which names no image seems to show, `(classes,)`."""
        some = self.images[:MOST_COUNTED]
        text_scores = some @ (np.float32(self.logit_scale) * self.texts).T + self.blocked
        return find_absent(softmax_rows(text_scores), self.labels, len(self.images))

    def among(self, is_present: Bools) -> _Problem:
        """Return the problem with the present names only."""
        number = np.cumsum(is_present) - 1
        return replace(
            self,
            texts=self.texts[is_present],
            labels=number[self.labels],
            blocked=self.blocked[is_present],
            absent=self.texts[~is_present],
        )

    def with_absent(self, found: MixtureFit, is_absent: Bools) -> MixtureFit:
        """Return a fit that has the absent names again.

        They are represented by their texts, with the largest offsets at which they are improbable for all images: a
        new image gets such a name only if it fits it clearly better than any image of this collection does.
        """
        text_rule, present = np.float32(self.logit_scale) * self.texts, np.flatnonzero(~is_absent)
        gaps = np.full(int(is_absent.sum()), np.inf, dtype=np.float32)
        for rows in row_parts(len(self.images), max(self.images.shape[1], len(self.texts))):
            scores = self.images[rows] @ (text_rule[present] + found.weights).T + found.offsets
            best = scores.max(axis=1, keepdims=True)
            gaps = np.minimum(gaps, (best - self.images[rows] @ text_rule[is_absent].T).min(axis=0))
        weights, offsets = np.zeros_like(self.texts), np.zeros(len(self.texts), dtype=np.float32)
        evening, probabilities = np.zeros_like(offsets), empty_rows(len(self.images), len(self.texts))
        weights[present], offsets[present], evening[present] = found.weights, found.offsets, found.evening
        offsets[is_absent] = gaps + np.float32(found.temperature * np.log(IMPROBABLE))
        for rows in row_parts(*probabilities.shape):
            probabilities[rows] = 0.0
            probabilities[rows, present] = found.probabilities[rows]
        return replace(
            found, weights=weights, offsets=offsets, evening=evening, probabilities=probabilities, is_absent=is_absent
        )

    def solve(self) -> MixtureFit:
        """Fit the mixture to all images, or to a sample first if there are many."""
        n_sampled = max(FEWEST_SAMPLED, SAMPLED_PER_CLASS * len(self.texts))
        if len(self.images) < 2 * n_sampled:
            return replace(self, tested=self.test()).fit(self.most_rounds)
        sample = replace(self, images=self.images[:n_sampled], count_of_each=len(self.images) / n_sampled)
        first = sample.fit(self.most_rounds)
        last = replace(self, tested=sample.test()).fit(ROUNDS_AFTER_SAMPLE, first)
        return replace(last, rounds=first.rounds + last.rounds)

    def test(self) -> tuple[float, float]:
        """Cross-validate the single labels of allowed classes; return the accuracy to expect, and its weight.

        Labels of images that were chosen because they are unclear tell less than the accuracy on all images: theirs
        sets a temperature, at which the mean confidence of all images is returned.
        """
        counted = np.flatnonzero(np.isfinite(self.blocked[self.labels]) & self.is_single)
        if len(counted) < FEWEST_TESTED or not len(self.images):
            return 0.0, 0.0
        by_class = counted[np.argsort(self.labels[counted], kind="stable")]
        some, moments = self.images[evenly_spaced(len(self.images), 1024)], self._moments()
        tested: list[Floats] = []
        others: list[Floats] = []
        n_right = 0
        for held_out in (by_class[fold::N_FOLDS] for fold in range(N_FOLDS)):
            rest = np.setdiff1d(np.arange(len(self.labels)), held_out)
            fit = replace(
                self,
                labeled=self.labeled[rest],
                labels=self.labels[rest],
                is_single=self.is_single[rest],
                moments=moments,
            ).fit(self.most_rounds, is_trial=True)
            rule = np.float32(self.logit_scale) * self.texts + fit.weights
            tested.append(self.labeled[held_out] @ rule.T + fit.offsets + self.blocked)
            others.append(some @ rule.T + fit.offsets + self.blocked)
            n_right += int(np.count_nonzero(tested[-1].argmax(axis=1) == self.labels[held_out]))
        temperature = find_temperature(np.concatenate(tested), (n_right + 1) / (len(counted) + 2))
        per_class = len(counted) / int(np.isfinite(self.blocked).sum())
        return mean_confidence(np.concatenate(others) / np.float32(temperature)), per_class**2 / (per_class**2 + 1)

    @property
    def most_rounds(self) -> int:
        """Return the maximum number of rounds before class sizes are evened out, and after."""
        n_labels = int(np.isfinite(self.blocked[self.labels]).sum())
        fewer = int(self.settings.iterations / (1 + n_labels / len(self.texts) / ROUNDS_HALVED_AT))
        return min(self.settings.iterations, max(LABELED_ROUNDS, fewer))

    def fit(self, most_rounds: int, first: MixtureFit | None = None, is_trial: bool = False) -> MixtureFit:
        """Estimate and assign in turn until hardly any image changes its class; even out the class sizes; repeat.

        Starts from zero-shot, or from a first fit, whose evening is kept. A trial needs no temperature.
        """
        n_images, n_classes = len(self.images), len(self.texts)
        if not n_images:  # zero-shot
            none, nothing = np.zeros(n_classes, dtype=np.float32), np.zeros((0, n_classes), dtype=np.float32)
            return MixtureFit(np.zeros_like(self.texts), none, 1.0, nothing, 0, none)
        text_rule = np.float32(self.logit_scale) * self.texts
        text_scores = self._scores(text_rule, self.blocked)
        probabilities = _softmax(text_scores)
        start = self._start(probabilities)
        spread, weight = _spread(text_scores), self._image_weight(start.evidence.contradiction)
        evening = np.zeros(n_classes, dtype=np.float32)
        is_even = first is not None or not self.settings.even_out
        if first is not None:
            evening = first.evening
            probabilities = _softmax(self._scores(text_rule + first.weights, first.offsets + self.blocked))
        labels, rounds, last_round = probabilities.argmax(axis=1), 0, most_rounds
        while True:
            counts, sums = self._totals(probabilities, start.center)
            directions = self._directions(counts, sums, start, is_first=not rounds and first is None)
            scores = self._scores(directions, -directions @ start.center)
            scale = np.float32(weight * spread / max(_spread(scores), 1e-3 * spread, 1e-12))
            frequency = counts + start.evidence.counts + self.settings.alpha
            offsets = np.log(frequency / frequency.sum()).astype(np.float32) + evening
            for rows in row_parts(n_images, n_classes):
                scores[rows] = text_scores[rows] + scale * scores[rows] + offsets
            probabilities = _softmax(scores)
            before, labels = labels, probabilities.argmax(axis=1)
            rounds += 1
            if rounds == last_round or int(np.count_nonzero(labels != before)) <= TOLERANCE * n_images:
                if is_even:
                    break
                evening, is_even = evening_offsets(scores, text_scores), True
                last_round = rounds + most_rounds
        temperature = 1.0
        if not is_trial:
            # Zero-shot's confidence is that among all names: without the absent ones, it would be high in any case.
            some, absent_rule = evenly_spaced(n_images, 1024), np.float32(self.logit_scale) * self.absent
            zero_shot = np.hstack([text_scores[some], self.images[some] @ absent_rule.T])
            temperature = mixture_temperature(scores[some], zero_shot, *self.tested)
        return MixtureFit(
            weights=np.asarray(scale * directions, dtype=np.float32),
            offsets=np.asarray(offsets - scale * (directions @ start.center), dtype=np.float32),
            temperature=temperature,
            probabilities=_softmax(scores, temperature),
            rounds=rounds,
            evening=evening,
        )

    def _start(self, probabilities: Floats) -> _Start:
        """Return what all rounds share: the moments of the images, and the class means by zero-shot."""
        center, covariance = self.moments or self._moments()
        is_allowed = np.isfinite(self.blocked)
        evidence = gather_evidence(
            self.images, center, self.texts, self.logit_scale, self.labeled, self.labels, is_allowed
        )
        counts, sums = self._totals(probabilities, center)
        means = np.asarray(sums / np.maximum(counts, 1e-9)[:, None], dtype=np.float32)
        return _Start(center, covariance, means, evidence)

    def _directions(self, counts: Floats, sums: Floats, start: _Start, is_first: bool) -> Floats:
        """Return linear discriminant analysis with a shrunk covariance; means are pulled toward their start.

        In the first round, means come from labels and the zero-shot start alone. Otherwise, images with a wrong
        zero-shot label would outnumber the labels from the beginning.
        """
        settings = self.settings
        unlabeled_weight = np.float32(0 if is_first and len(self.labels) else 1)
        within = _within(start.covariance, counts, sums, settings.shrinkage)
        alpha, weight = np.float32(settings.alpha) * start.evidence.trust, np.float32(settings.labeled_weight)
        pulled = unlabeled_weight * counts + weight * start.evidence.counts + alpha
        total = unlabeled_weight * sums + weight * start.evidence.sums + alpha[:, None] * start.means
        means = np.asarray(total / pulled[:, None], dtype=np.float32)
        # SciPy brings a BLAS of its own, whose threads would compete with those of NumPy.
        return _equal_length(np.linalg.solve(within, means.T).T, means, counts)

    def _image_weight(self, contradiction: float) -> float:
        """Return the weight of the mixture relative to the texts, which grows with images and labels per class."""
        settings, n_classes = self.settings, len(self.texts)
        per_class = self.count_of_each * len(self.images) / n_classes
        # With less than one label per class, most classes depend on their names. More labels raise the weight of the
        # images if they contradict the names.
        labeled = (len(self.labels) / n_classes) ** 4 * (2 * contradiction) ** 2
        by_labels = 1.0 + 3.0 * labeled / (labeled + 1.0)
        return settings.image_weight * by_labels * per_class / (per_class + settings.half_weight_at)

    def _moments(self) -> tuple[Floats, Floats]:
        """Return the mean `(width,)` and the covariance `(width, width)` of all unlabeled images."""
        width = self.images.shape[1]
        center = np.asarray(self.images.mean(axis=0, dtype=np.float64), dtype=np.float32)
        total = np.zeros((width, width), dtype=np.float64)
        for rows in row_parts(len(self.images), width):
            total += self.images[rows].T @ self.images[rows]
        return center, np.asarray(total / len(self.images) - np.outer(center, center), dtype=np.float32)

    def _scores(self, weights: Floats, offsets: Floats) -> Floats:
        """Return a linear rule's scores of the unlabeled images, `(images, classes)`."""
        scores = empty_rows(len(self.images), len(weights))
        for rows in row_parts(len(self.images), max(self.images.shape[1], len(weights))):
            scores[rows] = self.images[rows] @ weights.T + offsets
        return scores

    def _totals(self, probabilities: Floats, center: Floats) -> tuple[Floats, Floats]:
        """Return each class's count `(classes,)` and sum of centered images `(classes, width)`."""
        counts, sums = np.zeros(len(self.texts)), np.zeros(self.texts.shape)
        for rows in row_parts(len(self.images), max(self.texts.shape)):
            counts += probabilities[rows].sum(axis=0)
            sums += probabilities[rows].T @ self.images[rows]
        sums -= counts[:, None] * center
        each = self.count_of_each
        return np.asarray(each * counts, dtype=np.float32), np.asarray(each * sums, dtype=np.float32)


def _within(covariance: Floats, counts: Floats, sums: Floats, shrinkage: float) -> Floats:
    """Return the shrunk covariance within classes, `(width, width)`."""
    raw = sums / np.maximum(counts, 1e-9)[:, None]
    within = covariance - (raw.T * (counts / counts.sum())) @ raw
    width = len(within)
    mean_variance = max(float(np.trace(within)) / width, SMALLEST_VARIANCE / width)
    return np.asarray((1.0 - shrinkage) * within + shrinkage * mean_variance * np.eye(width), dtype=np.float32)


def _equal_length(directions: Floats, means: Floats, counts: Floats) -> Floats:
    """Return class directions of equal Mahalanobis length: classes differ by direction, none lies in the middle."""
    lengths = np.maximum((directions * means).sum(axis=1), 1e-9)
    length = float((counts * lengths).sum() / counts.sum())
    return np.asarray(directions * np.sqrt(length / lengths)[:, None], dtype=np.float32)


def _spread(scores: Floats) -> float:
    """Return the mean standard deviation of scores over the allowed classes of an image."""
    finite = np.isfinite(scores[0])
    parts = row_parts(*scores.shape)
    return float(sum(float(scores[rows][:, finite].std(axis=1).sum()) for rows in parts) / len(scores))


def _softmax(scores: Floats, temperature: float = 1.0) -> Floats:
    n_images, n_classes = scores.shape
    return fill_rows(n_images, n_classes, lambda rows: softmax_rows(scores[rows] / np.float32(temperature)))


def _check(images: Floats, texts: Floats, labeled: Floats, labels: Ints) -> None:
    width = texts.shape[-1]
    if texts.ndim != 2 or images.ndim != 2 or images.shape[1] != width or labeled.shape != (len(labels), width):
        raise InputError(
            "Expected embeddings of images (images, width), texts (classes, width) and labeled images "
            f"({len(labels)}, width), got {images.shape}, {texts.shape} and {labeled.shape}."
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < len(texts):
        raise InputError(f"labels: expected class ids in 0..{len(texts) - 1}, got {labels.min()}..{labels.max()}.")
