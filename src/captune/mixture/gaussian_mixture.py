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
from captune.mixture.calibration import evening_offsets, find_temperature, mean_confidence, mixture_temperature
from captune.mixture.label_evidence import LabelEvidence, gather_evidence
from captune.mixture.open_world import find_absent

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
        is_absent: Which names no image seems to show, `(classes,)`; empty if all are shown.
    """

    weights: Floats
    offsets: Floats
    temperature: float
    probabilities: Floats
    rounds: int
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
    known = texts[:0] if labeled is None else as_embeddings(labeled, "labeled images")
    ids = np.asarray([] if labels is None else labels, dtype=np.int64)
    _check(images, texts, known, ids)
    rule, zero_shot = settings or MixtureSettings(), np.float32(logit_scale) * texts
    if not len(images):
        none = np.zeros(len(texts), dtype=np.float32)
        return MixtureFit(np.zeros_like(texts), none, 1.0, np.empty((0, len(texts)), dtype=np.float32), 0)
    single = np.ones(len(ids), dtype=np.bool_) if is_single is None else np.asarray(is_single, dtype=np.bool_)
    blocked = np.where(class_mask(allowed, len(texts)), np.float32(0), np.float32(-np.inf))
    # The same images in another order have the same result: their samples and sums are those of the canonical order.
    order, known_order = canonical_order(images), canonical_order(known)
    images, known, ids, single = take_rows(images, order), known[known_order], ids[known_order], single[known_order]
    is_absent = np.zeros(len(texts), dtype=np.bool_)
    with threads_for(images.size * max(texts.shape)):
        if rule.absent_names:
            some = softmax_rows(images[:MOST_COUNTED] @ zero_shot.T + blocked)
            is_absent = find_absent(some, ids, len(images))
        present, numbers = ~is_absent, np.cumsum(~is_absent) - 1
        found = _Problem(
            images,
            zero_shot[present],
            rule,
            _moments(images),
            known,
            numbers[ids],
            single,
            blocked[present],
            zero_shot[is_absent],
        ).solve()
        if is_absent.any():
            found = _with_absent(found, images, zero_shot, is_absent)
    return replace(found, probabilities=take_rows(found.probabilities, np.argsort(order)))


@dataclass(frozen=True, eq=False)
class _Problem:
    """What is fitted.

    Attributes:
        texts: Texts of the names that images seem to show, times the logit scale, `(classes, width)`.
        moments: Mean and covariance of the images.
        blocked: Minus infinity for classes that only labeled images may have, `(classes,)`.
        absent: Texts of the other names, times the logit scale, `(names, width)`.
        count_of_each: Number of images that each image stands for.
    """

    images: Floats
    texts: Floats
    settings: MixtureSettings
    moments: tuple[Floats, Floats]
    labeled: Floats
    labels: Ints
    is_single: Bools
    blocked: Floats
    absent: Floats
    count_of_each: float = 1.0

    def solve(self) -> MixtureFit:
        """Fit the mixture to all images, or to a sample first if there are many."""
        n_sampled, most_rounds = max(FEWEST_SAMPLED, SAMPLED_PER_CLASS * len(self.texts)), self._most_rounds()
        if len(self.images) < 2 * n_sampled:
            return self._fit(most_rounds, self._test(most_rounds))[0]
        some = self.images[:n_sampled]
        sample = replace(self, images=some, moments=_moments(some), count_of_each=len(self.images) / n_sampled)
        first = sample._fit(most_rounds)
        last, _ = self._fit(ROUNDS_AFTER_SAMPLE, sample._test(most_rounds), first)
        return replace(last, rounds=first[0].rounds + last.rounds)

    def _most_rounds(self) -> int:
        """Return the maximum number of rounds before class sizes are evened out, and after."""
        n_labels = int(np.isfinite(self.blocked[self.labels]).sum())
        fewer = int(self.settings.iterations / (1 + n_labels / len(self.texts) / ROUNDS_HALVED_AT))
        return min(self.settings.iterations, max(LABELED_ROUNDS, fewer))

    def _test(self, most_rounds: int) -> tuple[float, float]:
        """Cross-validate the single labels of allowed classes; return the accuracy to expect, and its weight, 0 to 1.

        Labels of images that were chosen because they are unclear tell less than the accuracy on all images: theirs
        sets a temperature, at which the mean confidence of all images is returned.
        """
        counted = np.flatnonzero(np.isfinite(self.blocked[self.labels]) & self.is_single)
        if len(counted) < FEWEST_TESTED:
            return 0.0, 0.0
        by_class = counted[np.argsort(self.labels[counted], kind="stable")]
        some = self.images[evenly_spaced(len(self.images), 1024)]
        tested, others, n_right = list[Floats](), list[Floats](), 0
        for held_out in (by_class[fold::N_FOLDS] for fold in range(N_FOLDS)):
            rest = np.setdiff1d(np.arange(len(self.labels)), held_out)
            fit, _ = replace(self, labeled=self.labeled[rest], labels=self.labels[rest])._fit(most_rounds)
            rule, offsets = self.texts + fit.weights, fit.offsets
            tested.append(self.labeled[held_out] @ rule.T + offsets + self.blocked)
            others.append(some @ rule.T + offsets + self.blocked)
            n_right += int(np.count_nonzero(tested[-1].argmax(axis=1) == self.labels[held_out]))
        temperature = find_temperature(np.concatenate(tested), (n_right + 1) / (len(counted) + 2))
        per_class = len(counted) / int(np.isfinite(self.blocked).sum())
        return mean_confidence(np.concatenate(others) / np.float32(temperature)), per_class**2 / (per_class**2 + 1)

    def _fit(
        self,
        most_rounds: int,
        tested: tuple[float, float] | None = None,
        first: tuple[MixtureFit, Floats] | None = None,
    ) -> tuple[MixtureFit, Floats]:
        """Estimate and assign in turn until hardly any image changes its class; even out the class sizes; repeat.

        Starts from zero-shot, or from a first fit, whose evening is kept. Without an accuracy by cross-validation, it
        is a trial, which needs no temperature. Returns also the part of the offsets that evens out the class sizes.
        """
        n_images, n_classes = len(self.images), len(self.texts)
        center, _ = self.moments
        evidence = gather_evidence(
            self.images, center, self.texts, self.labeled, self.labels, np.isfinite(self.blocked)
        )
        text_scores = self._scores(self.texts, self.blocked)
        probabilities = _softmax(text_scores)
        means = _means(*self._totals(probabilities))
        spread, weight = _spread(text_scores), self._image_weight(evidence.contradiction)
        evening, is_even = np.zeros(n_classes, dtype=np.float32), not self.settings.even_out
        if first is not None:
            (rule, evening), is_even = first, True
            probabilities = _softmax(self._scores(self.texts + rule.weights, rule.offsets + self.blocked))
        labels, rounds, last_round = probabilities.argmax(axis=1), 0, most_rounds
        while True:
            counts, sums = self._totals(probabilities)
            # Images with a wrong zero-shot label would outnumber the labels from the beginning, so they count later.
            is_heard = rounds > 0 or first is not None or not len(self.labels)
            directions = self._directions(counts, sums, means, evidence, is_heard)
            scores = self._scores(directions, -directions @ center)
            scale = np.float32(weight * spread / max(_spread(scores), 1e-3 * spread, 1e-12))
            frequency = counts + evidence.counts + self.settings.alpha
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
        temperature = 1.0 if tested is None else self._temperature(scores, text_scores, tested)
        weights = np.asarray(scale * directions, dtype=np.float32)
        offsets = np.asarray(offsets - scale * (directions @ center), dtype=np.float32)
        return MixtureFit(weights, offsets, temperature, _softmax(scores, temperature), rounds), evening

    def _temperature(self, scores: Floats, text_scores: Floats, tested: tuple[float, float]) -> float:
        """Return the temperature of a fit; zero-shot's confidence would be high in any case without absent names."""
        some = evenly_spaced(len(scores), 1024)
        zero_shot = np.hstack([text_scores[some], self.images[some] @ self.absent.T])
        return mixture_temperature(scores[some], zero_shot, *tested)

    def _directions(
        self, counts: Floats, sums: Floats, start: Floats, evidence: LabelEvidence, is_heard: bool
    ) -> Floats:
        """Return linear discriminant analysis with a shrunk covariance; means are pulled toward their start.

        If the unlabeled images are not heard, means come from labels and start alone.
        """
        unlabeled, labeled = np.float32(is_heard), np.float32(self.settings.labeled_weight)
        alpha = np.float32(self.settings.alpha) * evidence.trust
        pulled = unlabeled * counts + labeled * evidence.counts + alpha
        total = unlabeled * sums + labeled * evidence.sums + alpha[:, None] * start
        means = np.asarray(total / pulled[:, None], dtype=np.float32)
        within = _within(self.moments[1], counts, sums, self.settings.shrinkage)
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

    def _scores(self, weights: Floats, offsets: Floats) -> Floats:
        """Return a linear rule's scores of the unlabeled images, `(images, classes)`."""
        images = self.images
        return fill_rows(len(images), len(weights), lambda rows: images[rows] @ weights.T + offsets, images.shape[1])

    def _totals(self, probabilities: Floats) -> tuple[Floats, Floats]:
        """Return each class's count `(classes,)` and sum of centered images `(classes, width)`."""
        counts, sums = np.zeros(len(self.texts)), np.zeros(self.texts.shape)
        for rows in row_parts(len(self.images), max(self.texts.shape)):
            counts += probabilities[rows].sum(axis=0)
            sums += probabilities[rows].T @ self.images[rows]
        sums -= counts[:, None] * self.moments[0]
        each = self.count_of_each
        return np.asarray(each * counts, dtype=np.float32), np.asarray(each * sums, dtype=np.float32)


def _with_absent(found: MixtureFit, images: Floats, texts: Floats, is_absent: Bools) -> MixtureFit:
    """Return a fit that has the absent names again.

    They are represented by their texts, with the largest offsets at which they are improbable for all images: a new
    image gets such a name only if it fits it clearly better than any image of this collection does.
    """
    gaps = np.full(int(is_absent.sum()), np.inf, dtype=np.float32)
    for rows in row_parts(len(images), max(texts.shape)):
        scores = images[rows] @ (texts[~is_absent] + found.weights).T + found.offsets
        best = scores.max(axis=1, keepdims=True)
        gaps = np.minimum(gaps, (best - images[rows] @ texts[is_absent].T).min(axis=0))
    places = np.flatnonzero(is_absent) - np.arange(len(gaps))  # among the present names
    return replace(
        found,
        weights=np.insert(found.weights, places, 0, axis=0),
        offsets=np.insert(found.offsets, places, gaps + np.float32(found.temperature * np.log(IMPROBABLE))),
        probabilities=fill_rows(
            len(images), len(texts), lambda rows: np.insert(found.probabilities[rows], places, 0, axis=1)
        ),
        is_absent=is_absent,
    )


def _moments(images: Floats) -> tuple[Floats, Floats]:
    """Return the mean `(width,)` and the covariance `(width, width)` of images."""
    n_images, width = images.shape
    center = np.asarray(images.mean(axis=0, dtype=np.float64), dtype=np.float32)
    total = np.zeros((width, width), dtype=np.float64)
    for rows in row_parts(n_images, width):
        total += images[rows].T @ images[rows]
    return center, np.asarray(total / n_images - np.outer(center, center), dtype=np.float32)


def _means(counts: Floats, sums: Floats) -> Floats:
    return np.asarray(sums / np.maximum(counts, 1e-9)[:, None], dtype=np.float32)


def _within(covariance: Floats, counts: Floats, sums: Floats, shrinkage: float) -> Floats:
    """Return the shrunk covariance within classes, `(width, width)`."""
    raw = _means(counts, sums)
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
    width = texts.shape[1]
    if images.shape[1] != width or labeled.shape != (len(labels), width):
        raise InputError(
            f"Expected images, texts and {len(labels)} labeled images with embeddings of one width, got "
            f"{images.shape}, {texts.shape} and {labeled.shape}."
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < len(texts):
        raise InputError(f"labels: expected class ids in 0..{len(texts) - 1}, got {labels.min()}..{labels.max()}.")
