"""Mismatch detection: which class names fail to point at their images (Section 3.1, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from captune.concepts.clustering import ShrinkingClusters
from captune.core.arrays import Floats, Ints, as_embeddings
from captune.core.errors import InputError, raise_all
from captune.core.runtime import threads_for
from captune.core.settings import NonNegative, NonNegativeFloat, Positive, PositiveShare, Rate

_CHUNK_FLOATS = 1 << 22
_LIKELY_CHUNK_FLOATS = 1 << 25
NEARLY, CLOSE_COSINE = 1e-6, 1e-5
"""Pairs whose odds differ by no more, and centroids whose cosines do, are compared exactly."""
MOST_ROUNDS = 10_000
"""Of all runs together: a run has about as many rounds as classes."""


@dataclass(frozen=True)
class MismatchSettings:
    """How misleading class names are detected; `PAPER_MISMATCH` holds the values of the paper.

    Attributes:
        threshold_share: A run ends when fewer than this share of the classes is left, t = ceil(share * classes).
        threshold: The number t itself, in place of threshold_share.
        rare_below: Only a class that is predicted for fewer than this share of images / classes can be detected;
            none sets no limit, as in the paper.
        runs: Number of runs, each with a different K-means initialization.
        min_frequency: A class is mismatched if at least this share of the runs detects it.
        images_per_class: With fewer images per class on average, no class is detected: clusters of single images say
            nothing about names.
        removes_one: Whether a round without images to remove takes out the one most probable in the class; the paper
            takes out none.
        seed: Random seed of K-means.
    """

    threshold_share: PositiveShare = 0.5
    threshold: Positive | None = None
    rare_below: Rate | None = 0.5
    runs: Positive = 10
    min_frequency: PositiveShare = 0.5
    images_per_class: NonNegativeFloat = 2.0
    removes_one: bool = True
    seed: NonNegative = 0

    def threshold_of(self, n_classes: int) -> int:
        """Return t for a number of eligible classes."""
        # Rounded first, so that ceil(0.1 * 30) is 3 and not 4.
        return self.threshold or max(1, math.ceil(round(self.threshold_share * n_classes, 9)))

    def runs_of(self, n_images: int, n_classes: int) -> int:
        """Return the number of runs: fewer with thousands of classes, one if every image is a cluster, maybe none."""
        if n_images < self.images_per_class * n_classes:
            return 0
        return 1 if n_images <= n_classes else min(self.runs, max(1, MOST_ROUNDS // n_classes))


PAPER_MISMATCH = MismatchSettings(
    threshold_share=0.1, rare_below=None, runs=1, min_frequency=1.0, images_per_class=0.0, removes_one=False
)
"""One run with t = ceil(C / 10), and no limit on how often a mismatched class may be predicted."""


@dataclass(frozen=True)
class MismatchFindings:
    """The result of the detection; arrays over classes have one entry for each class, eligible or not.

    Attributes:
        mismatched: Ids of the classes with misleading names, ascending.
        frequency: Share of the runs that detected each class, `(classes,)`.
        remaining: Positions of the images that were not removed with a well-matched class in at least half of the
            runs (I_final; with one run, exactly that run's).
        predicted_counts: Images that zero-shot predicts as each eligible class, `(classes,)`.
        concentration: Largest share of each class's most probable images in one cluster, mean over the runs,
            `(classes,)`; NaN for a class that is not eligible.
        classes: Ids of the eligible classes, ascending.
        threshold: The value of t.
        runs: The number of runs; 0 if there are too few images to look for misleading names.
    """

    mismatched: Ints
    frequency: Floats
    remaining: Ints
    predicted_counts: Ints
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
    """Detect the classes with misleading names among `classes` (by default all).

    Args:
        image_embeddings: The unlabeled images, `(images, width)`.
        class_embeddings: The texts of all classes, `(classes, width)`.
        logit_scale: Factor of a cosine before the softmax, 100 for CLIP.
        settings: The settings of the detection.
        classes: Ids of the classes that an unlabeled image can have.
        advance: Called with the number of finished rounds, of `runs_of` times the number of these classes.

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
    n_images, n_classes = len(images), len(class_texts)
    texts = np.ascontiguousarray(class_texts[eligible], dtype=np.float32)
    threshold = settings.threshold_of(len(eligible))
    zero_shot = predict_zero_shot(images, texts, logit_scale)
    likely = _likely_images(images, texts, zero_shot, logit_scale)
    detected = np.zeros(len(texts), dtype=np.int64)
    stayed = np.zeros(n_images, dtype=np.int64)
    concentration = np.zeros(len(texts), dtype=np.float64)
    fewest = zero_shot.least_predicted(threshold)  # Y_low-t
    if settings.rare_below is not None:
        fewest = fewest[zero_shot.counts[fewest] < settings.rare_below * n_images / len(texts)]
    first_remaining: Ints | None = None
    n_runs = settings.runs_of(n_images, len(texts))
    for run in range(n_runs):
        with threads_for(images.size * len(texts)):
            clusters = ShrinkingClusters(images, len(texts), np.random.default_rng([settings.seed, run]))
            concentration += _concentration(likely, clusters.owners())
            final = eliminate(images, texts, zero_shot, clusters, threshold, logit_scale, settings.removes_one, advance)
        advance(len(texts) - len(final.removed))
        detected[np.intersect1d(final.classes, fewest)] += 1  # Y_MM = Y_final and Y_low-t
        stayed[final.images] += 1
        first_remaining = final.images if first_remaining is None else first_remaining
    frequency, n_counted = detected / max(1, n_runs), max(1, n_runs)
    remaining = np.flatnonzero(2 * stayed >= n_runs)
    return MismatchFindings(
        mismatched=eligible[(detected > 0) & (frequency >= settings.min_frequency - 1e-9)],
        frequency=_over_all_classes(frequency, eligible, n_classes, 0.0),
        remaining=remaining if len(remaining) or first_remaining is None else first_remaining,
        predicted_counts=_over_all_classes(zero_shot.counts, eligible, n_classes, 0).astype(np.int64),
        concentration=_over_all_classes(concentration / n_counted, eligible, n_classes, np.nan),
        classes=eligible,
        threshold=threshold,
        runs=n_runs,
    )


class Clusters(Protocol):
    """K-means clusters of the remaining images."""

    centroids: Floats

    def members(self, cluster: int) -> Ints:
        """Return the positions of the images of a cluster."""
        ...

    def remaining(self) -> Ints:
        """Return the positions of the remaining images."""
        ...

    def shrink(self, images: Ints, n_clusters: int) -> None:
        """Remove images and cluster the others again, into no more clusters than images."""
        ...


@dataclass(frozen=True)
class ZeroShotPredictions:
    """Zero-shot predictions without the `(images, classes)` matrix; classes are positions among the eligible ones."""

    predicted: Ints
    odds_against: Floats
    """(1 - p) / p of the predicted class, which still ranks images where p rounds to one."""
    log_totals: Floats
    """Logarithm of the softmax denominator of each image."""
    counts: Ints
    mean_probability: Floats

    def least_predicted(self, n_classes: int) -> Ints:
        """Return the classes with the fewest predicted images; ties go to the lowest mean probability."""
        return np.asarray(np.lexsort((self.mean_probability, self.counts))[:n_classes], dtype=np.int64)


@dataclass(frozen=True)
class TextMatches:
    """The most probable centroid of each text, `(texts,)`.

    Probabilities near one tie in floating point, so matches are compared by the odds against them, (1 - p) / p.
    """

    centroid: Ints
    odds_against: NDArray[np.float64]
    similarity: NDArray[np.float64]


@dataclass(frozen=True)
class Elimination:
    """The result of one run: remaining classes (Y_final) and images (I_final), and removed classes in order."""

    classes: Ints
    images: Ints
    removed: Ints


def predict_zero_shot(images: Floats, class_embeddings: Floats, logit_scale: float) -> ZeroShotPredictions:
    """Predict each image from the class names, in chunks."""
    n_images, n_classes = len(images), len(class_embeddings)
    predicted = np.empty(n_images, dtype=np.int64)
    odds_against, log_totals = np.empty(n_images, dtype=np.float32), np.empty(n_images, dtype=np.float32)
    mass = np.zeros(n_classes, dtype=np.float64)
    step = max(1, _CHUNK_FLOATS // n_classes)
    for start in range(0, n_images, step):
        part = slice(start, start + step)
        scores = logit_scale * (images[part] @ class_embeddings.T)
        predicted[part], best = scores.argmax(axis=1), scores.max(axis=1)
        weights = np.exp(scores - best[:, None])
        weights[np.arange(len(weights)), predicted[part]] = 0
        odds_against[part] = weights.sum(axis=1)
        weights[np.arange(len(weights)), predicted[part]] = 1
        totals = 1 + odds_against[part]
        log_totals[part] = best + np.log(totals)
        mass += (weights / totals[:, None]).sum(axis=0)
    counts = np.bincount(predicted, minlength=n_classes).astype(np.int64)
    mean_probability = (mass / max(1, n_images)).astype(np.float32)
    return ZeroShotPredictions(predicted, odds_against, log_totals, counts, mean_probability)


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


class PairSearch:
    """Finds the most probable pair of a text and a centroid while texts are removed and some centroids move.

    For each text it keeps the sum of exp(scale * (cosine - reference)) over the centroids, and the largest cosine. A
    centroid that moved, appeared or vanished changes one term of each sum, so a round costs as much as its moved
    centroids. Sums of many updates round, so pairs that are nearly the best are compared exactly, by `best_pair`.
    """

    def __init__(self, texts: Floats, centroids: Floats, logit_scale: float) -> None:
        self._texts, self._exact, self._scale = texts, texts.astype(np.float64), logit_scale
        self._active, self._centroids = np.ones(len(texts), dtype=np.bool_), centroids
        self._sums: NDArray[np.float64] = np.ones(len(texts))
        self._largest: NDArray[np.float64] = np.full(len(texts), -1.0)
        self._reference = self._largest.copy()
        self._rebuild(centroids)

    def best(self) -> tuple[int, int]:
        """Return the most probable pair; ties go to the highest cosine, then to the first text."""
        own = np.exp(self._scale * (self._largest - self._reference))
        odds = np.where(self._active, (self._sums - own) / own, np.inf)
        near = np.flatnonzero(odds <= odds.min() + NEARLY * (1 + abs(odds.min())))
        if len(near) == 1:
            scores = (self._centroids @ self._texts[near[0]]) / np.maximum(
                np.linalg.norm(self._centroids, axis=1), 1e-12
            )
            nearest = int(scores.argmax())
            if np.count_nonzero(scores >= scores[nearest] - CLOSE_COSINE) == 1:
                return int(near[0]), nearest
        text, cluster = best_pair(self._texts[near], self._centroids, self._scale)
        return int(near[text]), cluster

    def remove(self, text: int, centroids: Floats) -> None:
        """Remove a text, and continue with other centroids, of which most are in the same order as before."""
        self._active[text] = False
        old, n_old, n_new = self._centroids, len(self._centroids), len(centroids)
        if n_new == 0 or n_old - n_new not in (0, 1):
            return self._rebuild(centroids)
        # One centroid was dropped somewhere: before it, rows are in their place, after it, one further.
        is_same = (old[:n_new] == centroids).all(axis=1)
        is_shifted = ~is_same & (old[n_old - n_new :] == centroids).all(axis=1)
        source = np.where(is_shifted, np.arange(n_new) + n_old - n_new, np.arange(n_new))
        is_known = is_same | is_shifted
        gone = np.setdiff1d(np.arange(n_old), source[is_known])
        new = np.flatnonzero(~is_known)
        n_changed, is_unclear = len(gone) + len(new), len(np.unique(source[is_known])) < is_known.sum()
        if is_unclear or 2 * n_changed > n_new or n_changed * len(self._texts) > _LIKELY_CHUNK_FLOATS:
            return self._rebuild(centroids)
        before, after = self._cosines(old[gone]), self._cosines(centroids[new])
        self._sums -= self._terms(before).sum(axis=1)
        self._sums += self._terms(after).sum(axis=1)
        self._centroids = centroids.copy()
        # The largest cosine of these may have been one of those that are gone.
        is_lost = self._active & (before.max(axis=1, initial=-2.0) >= self._largest - NEARLY)
        self._largest = np.maximum(self._largest, after.max(axis=1, initial=-2.0))
        self._renew(np.flatnonzero(is_lost))
        return None

    def _rebuild(self, centroids: Floats) -> None:
        self._centroids = centroids.copy()
        if len(centroids):
            self._renew(np.flatnonzero(self._active))

    def _renew(self, rows: Ints) -> None:
        """Compare some texts with all centroids."""
        step = max(1, _CHUNK_FLOATS // len(self._centroids))
        for part in (rows[start : start + step] for start in range(0, len(rows), step)):
            cosines = self._cosines(self._centroids, part)
            self._largest[part] = self._reference[part] = cosines.max(axis=1)
            self._sums[part] = np.exp(self._scale * (cosines - self._reference[part, None])).sum(axis=1)

    def _cosines(self, centroids: Floats, rows: Ints | None = None) -> NDArray[np.float64]:
        lengths = np.linalg.norm(centroids, axis=1, keepdims=True)
        unit = (centroids / np.maximum(lengths, 1e-12)).T.astype(np.float64)
        return np.asarray((self._exact if rows is None else self._exact[rows]) @ unit)

    def _terms(self, cosines: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.exp(self._scale * (cosines - self._reference[:, None])))


def images_to_remove(
    images: Floats,
    text: Floats,
    label: int,
    members: Ints,
    remaining: Ints,
    zero_shot: ZeroShotPredictions,
    limit: int,
    scale: float,
    removes_one: bool,
) -> Ints:
    """Return the images to remove with a class: the most confident ones of its cluster that are predicted as it.

    If there is none, it is with `removes_one` the one remaining image that is most probable in the class.
    """
    both = members[zero_shot.predicted[members] == label]
    if len(both) or not removes_one:
        return both[np.argsort(zero_shot.odds_against[both], kind="stable")[:limit]]
    step = max(1, _CHUNK_FLOATS // len(text))
    parts = [images[remaining[start : start + step]] @ text for start in range(0, len(remaining), step)]
    log_probability = scale * np.concatenate(parts) - zero_shot.log_totals[remaining]
    return remaining[[int(log_probability.argmax())]]


def eliminate(
    images: Floats,
    texts: Floats,
    zero_shot: ZeroShotPredictions,
    clusters: Clusters,
    threshold: int,
    logit_scale: float,
    removes_one: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Elimination:
    """Run Algorithm 1 with the removal rule of Appendix B; classes are positions in `texts`."""
    active = np.arange(len(texts), dtype=np.int64)
    removed: list[int] = []
    remaining, pairs = clusters.remaining(), PairSearch(texts, clusters.centroids, logit_scale)
    while len(active) >= threshold and len(active) and len(remaining):
        best, cluster = pairs.best()
        limit = max(int(removes_one), len(remaining) // len(active))  # s of Appendix B
        clusters.shrink(
            images_to_remove(
                images,
                texts[best],
                best,
                clusters.members(cluster),
                remaining,
                zero_shot,
                limit,
                logit_scale,
                removes_one,
            ),
            len(active) - 1,
        )
        active, remaining = active[active != best], clusters.remaining()
        pairs.remove(best, clusters.centroids)
        removed.append(best)
        advance(1)
    if len(active) >= threshold:  # fewer images than classes: no image is left to compare with
        rank = np.argsort(zero_shot.least_predicted(len(texts)))
        active = np.sort(active[np.argsort(rank[active])[: max(0, threshold - 1)]])
    return Elimination(active, remaining, np.array(removed, dtype=np.int64))


def _likely_images(images: Floats, texts: Floats, zero_shot: ZeroShotPredictions, logit_scale: float) -> Ints:
    """Return each class's most probable images, as many as a class has on average, `(classes, images per class)`."""
    n_likely = max(1, len(images) // len(texts))
    likely = np.empty((len(texts), n_likely), dtype=np.int64)
    step = max(1, _LIKELY_CHUNK_FLOATS // len(images))
    for start in range(0, len(texts), step):
        log_probability = logit_scale * (texts[start : start + step] @ images.T) - zero_shot.log_totals
        likely[start : start + step] = np.argpartition(-log_probability, n_likely - 1, axis=1)[:, :n_likely]
    return likely


def _concentration(likely: Ints, owners: Ints) -> Floats:
    """Return the largest share of each row of images that lies in one cluster (Figure 1)."""
    shares = [np.bincount(owners[row]).max() / len(row) for row in likely]
    return np.asarray(shares, dtype=np.float32)


def _over_all_classes(values: NDArray[Any], classes: Ints, n_classes: int, fill: float) -> Floats:
    """Return the values of some classes as an array over all classes."""
    filled = np.full(n_classes, fill, dtype=np.float32)
    filled[classes] = values
    return filled


def _check(images: Floats, texts: Floats, classes: Sequence[int] | Ints | None) -> Ints:
    """Return the sorted ids of the eligible classes, or raise an error for invalid input."""
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1]:
        raise InputError(
            f"Expected embeddings (images, width) and (classes, width), got {images.shape} and {texts.shape}."
        )
    ids = np.arange(len(texts)) if classes is None else np.unique(np.asarray(classes, dtype=np.int64))
    problems = []
    if not len(images):
        problems.append("there are no images")
    if not len(ids):
        problems.append("no class is eligible")
    problems += [f"class {c}: ids run from 0 to {len(texts) - 1}" for c in ids if not 0 <= c < len(texts)]
    raise_all(problems, "Misleading class names cannot be detected")
    return ids.astype(np.int64)
