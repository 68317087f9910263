"""Mismatch detection: which class names fail to point at their images (Section 3.1, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from captune.concepts.clustering import ShrinkingClusters
from captune.core.arrays import Floats, Ints, as_embeddings, evenly_spaced
from captune.core.errors import InputError, raise_all
from captune.core.runtime import threads_for
from captune.core.settings import NonNegative, Positive, PositiveShare, Rate

FEWEST_PER_CLASS, MOST_CLASSES = 2.0, 2000
"""With fewer images per class on average, or more classes, no name is looked at: clusters of single images say nothing
about names, and a run has as many rounds as classes."""
UNCOUNTABLE = f"there are fewer than two images per class, or more than {MOST_CLASSES:,} classes"
MOST_IMAGES, MOST_PER_CLASS = 20_000, 20
"""Names are judged by a sample of so many images, or of so many per class on average if these are more."""
MOST_ROUNDS = 10_000
"""Of all runs together."""


@dataclass(frozen=True)
class MismatchSettings:
    """How misleading class names are detected; `PAPER_MISMATCH` holds the values of the paper.

    Attributes:
        threshold_share: A run ends when fewer than this share of the classes is left, t = ceil(share * classes).
        rare_below: Only a class that is predicted for fewer than this share of images / classes can be detected;
            none sets no limit, as in the paper.
        runs: Number of runs, each with a different K-means initialization.
        min_frequency: A class is mismatched if at least this share of the runs detects it.
        seed: Random seed of K-means.
    """

    threshold_share: PositiveShare = 0.5
    rare_below: Rate | None = 0.5
    runs: Positive = 10
    min_frequency: PositiveShare = 0.5
    seed: NonNegative = 0

    def threshold_of(self, n_classes: int) -> int:
        """Return t for a number of eligible classes."""
        # Rounded first, so that ceil(0.1 * 30) is 3 and not 4.
        return max(1, math.ceil(round(self.threshold_share * n_classes, 9)))

    def runs_of(self, n_images: int, n_classes: int) -> int:
        """Return the number of runs: fewer with many classes, maybe none."""
        if n_images < FEWEST_PER_CLASS * n_classes or n_classes > MOST_CLASSES:
            return 0
        return min(self.runs, max(1, MOST_ROUNDS // n_classes))


PAPER_MISMATCH = MismatchSettings(threshold_share=0.1, rare_below=None, runs=1, min_frequency=1.0)
"""One run with t = ceil(C / 10), and no limit on how often a mismatched class may be predicted."""
Detection = Literal["paper", "robust"]
DETECTIONS: Mapping[Detection, MismatchSettings] = {"paper": PAPER_MISMATCH, "robust": MismatchSettings()}


@dataclass(frozen=True)
class MismatchFindings:
    """The result of the detection; arrays over classes have one entry for each class, eligible or not.

    Attributes:
        mismatched: Ids of the classes with misleading names, ascending.
        frequency: Share of the runs that detected each class, `(classes,)`.
        remaining: Positions of the images that were not removed with a well-matched class in at least half of the
            runs (I_final; with one run, exactly that run's).
        concentration: Largest share of each class's most probable images in one cluster, mean over the runs,
            `(classes,)`; NaN for a class that is not eligible.
        classes: Ids of the eligible classes, ascending.
        threshold: The value of t.
        runs: The number of runs; 0 if there are too few images, or too many classes, to look for misleading names.
    """

    mismatched: Ints
    frequency: Floats
    remaining: Ints
    concentration: Floats
    classes: Ints
    threshold: int
    runs: int


def detect_mismatch(
    image_embeddings: ArrayLike,
    class_embeddings: ArrayLike,
    logit_scale: float = 100.0,
    settings: MismatchSettings | None = None,
    classes: Sequence[int] | Ints | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> MismatchFindings:
    """Detect the classes with misleading names among `classes` (by default all), from `(images, width)` embeddings.

    `class_embeddings` `(classes, width)` are of all classes, of which an unlabeled image can have `classes`; the scale
    is the factor of a cosine before the softmax. `advance` is called with the number of finished rounds, of `runs_of`
    times the number of these classes.

    Examples:
        Three classes of ten images; the text of class 2 points away from its images.

        >>> import numpy as np
        >>> images = np.repeat(np.eye(3, 4), 10, axis=0)
        >>> images += 0.05 * np.random.default_rng(0).normal(size=images.shape)
        >>> texts = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0.1, 0, 0, 1]])
        >>> detect_mismatch(images, texts).mismatched
        array([2])
    """
    settings = settings or MismatchSettings()
    images, class_texts = as_embeddings(image_embeddings, "images"), as_embeddings(class_embeddings, "classes")
    eligible = _check(images, class_texts, classes)
    texts, threshold = class_texts[eligible], settings.threshold_of(len(eligible))
    sample = evenly_spaced(len(images), max(MOST_IMAGES, MOST_PER_CLASS * len(eligible)))
    n_runs = settings.runs_of(len(images), len(texts))
    detected, concentration = np.zeros((2, len(class_texts)), dtype=np.float32)
    concentration[np.setdiff1d(np.arange(len(class_texts)), eligible)] = np.nan
    stayed = np.zeros(len(sample), dtype=np.int64)
    if n_runs:
        images = images[sample]
        with threads_for(images.size * len(texts)):
            zero_shot = predict_zero_shot(images, texts, logit_scale)
    for run in range(n_runs):
        with threads_for(images.size * len(texts)):
            clusters = ShrinkingClusters(images, len(texts), np.random.default_rng([settings.seed, run]))
            shares = [np.bincount(clusters.owners[row]).max() / len(row) for row in zero_shot.likely]  # Figure 1
            final = eliminate(texts, zero_shot, clusters, threshold, logit_scale, advance)
        advance(len(texts) - len(final.removed))
        concentration[eligible] += shares
        fewest = zero_shot.least_predicted(threshold)  # Y_low-t
        if settings.rare_below is not None:
            fewest = fewest[zero_shot.counts[fewest] < settings.rare_below * len(images) / len(texts)]
        detected[eligible[np.intersect1d(final.classes, fewest)]] += 1  # Y_MM = Y_final and Y_low-t
        stayed[final.images] += 1
        if run == 0:
            first_remaining = final.images
    remaining = np.flatnonzero(2 * stayed >= n_runs)
    frequency = detected / max(1, n_runs)
    return MismatchFindings(
        mismatched=np.flatnonzero((detected > 0) & (frequency >= settings.min_frequency - 1e-6)),
        frequency=frequency.astype(np.float32),
        remaining=sample[remaining if len(remaining) else first_remaining],
        concentration=(concentration / max(1, n_runs)).astype(np.float32),
        classes=eligible,
        threshold=threshold,
        runs=n_runs,
    )


@dataclass(frozen=True)
class ZeroShotPredictions:
    """What zero-shot predicts; classes are positions among the eligible ones."""

    predicted: Ints
    """The class of each image, `(images,)`."""
    odds_against: Floats
    """(1 - p) / p of that class, which still ranks images where p rounds to one."""
    counts: Ints
    """Number of images predicted as each class, `(classes,)`."""
    mean_probability: Floats
    likely: Ints
    """Most probable images of each class, as many as a class has on average, `(classes, images per class)`."""

    def least_predicted(self, n_classes: int) -> Ints:
        """Return the classes with the fewest predicted images; ties go to the lowest mean probability."""
        return np.asarray(np.lexsort((self.mean_probability, self.counts))[:n_classes], dtype=np.int64)


class TextMatches(NamedTuple):
    """The most probable centroid of each text, `(texts,)`.

    Probabilities near one tie in floating point, so matches are compared by the odds against them, (1 - p) / p.
    """

    centroid: Ints
    odds_against: NDArray[np.float64]
    similarity: NDArray[np.float64]


class Elimination(NamedTuple):
    """The result of one run: remaining classes (Y_final) and images (I_final), and removed classes in order."""

    classes: Ints
    images: Ints
    removed: Ints


def predict_zero_shot(images: Floats, texts: Floats, logit_scale: float) -> ZeroShotPredictions:
    """Predict each image from the class names."""
    scores, each = np.float32(logit_scale) * (images @ texts.T), np.arange(len(images))
    predicted = scores.argmax(axis=1)
    scores -= scores[each, predicted][:, None]
    weights = np.exp(scores)
    weights[each, predicted] = 0
    odds_against = weights.sum(axis=1)
    weights[each, predicted] = 1
    scores -= np.log1p(odds_against)[:, None]  # log-probabilities
    n_likely = max(1, len(images) // len(texts))
    likely = np.argpartition(-scores, n_likely - 1, axis=0)[:n_likely].T
    mean_probability = (weights / (1 + odds_against)[:, None]).mean(axis=0)
    counts = np.bincount(predicted, minlength=len(texts)).astype(np.int64)
    return ZeroShotPredictions(predicted, odds_against, counts, mean_probability, likely)


def match_texts(texts: Floats, centroids: Floats, logit_scale: float) -> TextMatches:
    """Return the most probable centroid of each text, by the softmax of the scaled cosine over the centroids."""
    lengths = np.linalg.norm(centroids, axis=1, keepdims=True)
    cosines = texts.astype(np.float64) @ (centroids / np.maximum(lengths, 1e-12)).T.astype(np.float64)
    each, nearest = np.arange(len(texts)), cosines.argmax(axis=1)
    similarity = cosines[each, nearest]
    others = np.exp(logit_scale * (cosines - similarity[:, None]))
    others[each, nearest] = 0
    return TextMatches(nearest, others.sum(axis=1), similarity)


def best_pair(texts: Floats, centroids: Floats, logit_scale: float) -> tuple[int, int]:
    """Return the most probable pair of text and centroid; ties go to the highest cosine, then to the first text."""
    matches = match_texts(texts, centroids, logit_scale)
    text = int(np.lexsort((-matches.similarity, matches.odds_against))[0])
    return text, int(matches.centroid[text])


def eliminate(
    texts: Floats,
    zero_shot: ZeroShotPredictions,
    clusters: ShrinkingClusters,
    threshold: int,
    logit_scale: float,
    advance: Callable[[int], None] = lambda _: None,
) -> Elimination:
    """Run Algorithm 1 with the removal rule of Appendix B; classes are positions in `texts`."""
    active = np.arange(len(texts), dtype=np.int64)
    removed: list[int] = []
    while len(active) >= threshold and len(active) and len(clusters.remaining):
        text, cluster = best_pair(texts[active], clusters.centroids, logit_scale)
        # Appendix B: the s most confident images of the cluster that are predicted as the class.
        members = clusters.members(cluster)
        both = members[zero_shot.predicted[members] == active[text]]
        most = len(clusters.remaining) // len(active)
        leaving = both[np.argsort(zero_shot.odds_against[both], kind="stable")[:most]]
        clusters.shrink(leaving, len(active) - 1)
        removed.append(int(active[text]))
        active = np.delete(active, text)
        advance(1)
    if len(active) >= threshold:  # fewer images than classes: no image is left to compare with
        rank = np.argsort(zero_shot.least_predicted(len(texts)))
        active = np.sort(active[np.argsort(rank[active])[: max(0, threshold - 1)]])
    return Elimination(active, clusters.remaining, np.array(removed, dtype=np.int64))


def _check(images: Floats, texts: Floats, classes: Sequence[int] | Ints | None) -> Ints:
    """Return the sorted ids of the eligible classes, or raise an error for invalid input."""
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1]:
        raise InputError(
            f"Expected embeddings (images, width) and (classes, width), got {images.shape} and {texts.shape}."
        )
    ids = np.arange(len(texts)) if classes is None else np.unique(np.asarray(classes, dtype=np.int64))
    problems = ["there are no images"] * (not len(images)) + ["no class is eligible"] * (not len(ids))
    problems += [f"class {c}: ids run from 0 to {len(texts) - 1}" for c in ids if not 0 <= c < len(texts)]
    raise_all(problems, "Misleading class names cannot be detected")
    return ids.astype(np.int64)
