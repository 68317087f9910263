"""Mismatch detection: which class names fail to point at their images (Section 3.1, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le
from numpy.typing import NDArray

from captune.concepts.clustering import ShrinkingClusters
from captune.concepts.elimination import NamesAlone, eliminate, read_names
from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError, raise_all
from captune.core.settings import NonNegative, Positive

_CHUNK_FLOATS = 1 << 25


@dataclass(frozen=True)
class MismatchSettings:
    """How classes with misleading names are looked for; `PAPER_MISMATCH` holds the values of the paper.

    Attributes:
        threshold_share: A run ends when fewer than this share of the classes is left, t = ceil(share * classes).
        threshold: The number t itself; it takes the place of threshold_share.
        runs: How many times the detection runs, each from other random clusters.
        rare_below: Only a class that is predicted for fewer images than this share of an even part can be named;
            none sets no such limit, as in the paper.
        min_frequency: A class counts as mismatched when at least this share of the runs names it.
        seed: Seed of the clusters.
    """

    threshold_share: Annotated[float, Gt(0), Le(1)] = 0.5
    threshold: Positive | None = None
    rare_below: Annotated[float, Gt(0)] | None = 0.5
    runs: Positive = 10
    min_frequency: Annotated[float, Gt(0), Le(1)] = 0.5
    seed: NonNegative = 0

    def threshold_of(self, n_classes: int) -> int:
        """Return t for a number of classes that take part."""
        # Rounded first, so that ceil(0.1 * 30) is 3 and not 4.
        return self.threshold or max(1, math.ceil(round(self.threshold_share * n_classes, 9)))


PAPER_MISMATCH = MismatchSettings(threshold_share=0.1, rare_below=None, runs=1, min_frequency=1.0)
"""One run with t = ceil(C / 10), and no limit on how often a mismatched class is predicted."""


@dataclass(frozen=True)
class MismatchFindings:
    """What the detection found; arrays over classes have one entry for each class, also for those left out.

    Attributes:
        mismatched: Ids of the classes whose names mislead, ascending.
        frequency: Share of the runs that named each class, `(classes,)`.
        remaining: Positions of the images that no well matched class took away, in at least half of the runs
            (I_final; with one run, exactly that run's).
        predicted_counts: Images that zero-shot predicts as each class among those taking part, `(classes,)`.
        concentration: Share of each class's likely images that lie in one cluster, mean over the runs, `(classes,)`;
            NaN for a class that takes no part.
        classes: Ids of the classes that took part, ascending.
        threshold: The t that was used.
        runs: How many runs there were.
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
    image_embeddings: Floats,
    class_embeddings: Floats,
    logit_scale: float,
    settings: MismatchSettings | None = None,
    classes: Sequence[int] | Ints | None = None,
) -> MismatchFindings:
    """Find the classes whose names mislead, among `classes` (all by default), from embeddings of length one.

    Args:
        image_embeddings: The unlabeled images, `(images, width)`.
        class_embeddings: The texts of all classes, `(classes, width)`.
        logit_scale: What a cosine is multiplied with before a softmax, 100 for CLIP.
        settings: How to look.
        classes: Ids of the classes that an unlabeled image can have.
    """
    settings = settings or MismatchSettings()
    taking_part = _check(image_embeddings, class_embeddings, classes)
    texts = np.ascontiguousarray(class_embeddings[taking_part], dtype=np.float32)
    threshold = settings.threshold_of(len(taking_part))
    names = read_names(image_embeddings, texts, logit_scale)
    likely = _likely_images(image_embeddings, texts, names, logit_scale)
    named = np.zeros(len(texts), dtype=np.int64)
    stayed = np.zeros(len(image_embeddings), dtype=np.int64)
    concentration = np.zeros(len(texts), dtype=np.float64)
    fewest = names.fewest(threshold)  # Y_low-t
    if settings.rare_below is not None:
        fewest = fewest[names.counts[fewest] < settings.rare_below * len(image_embeddings) / len(texts)]
    first_remaining: Ints | None = None
    for run in range(settings.runs):
        clusters = ShrinkingClusters(image_embeddings, len(texts), np.random.default_rng([settings.seed, run]))
        concentration += _concentration(likely, clusters.owners())
        ended = eliminate(image_embeddings, texts, names, clusters, threshold, logit_scale)
        named[np.intersect1d(ended.classes, fewest)] += 1  # Y_MM = Y_final and Y_low-t
        stayed[ended.images] += 1
        first_remaining = ended.images if first_remaining is None else first_remaining
    frequency = named / settings.runs
    remaining = np.flatnonzero(2 * stayed >= settings.runs)
    return MismatchFindings(
        mismatched=taking_part[(named > 0) & (frequency >= settings.min_frequency - 1e-9)],
        frequency=_spread(frequency, taking_part, len(class_embeddings), 0.0),
        remaining=remaining if len(remaining) or first_remaining is None else first_remaining,
        predicted_counts=_spread(names.counts, taking_part, len(class_embeddings), 0).astype(np.int64),
        concentration=_spread(concentration / settings.runs, taking_part, len(class_embeddings), np.nan),
        classes=taking_part,
        threshold=threshold,
        runs=settings.runs,
    )


def _likely_images(images: Floats, texts: Floats, names: NamesAlone, logit_scale: float) -> Ints:
    """Return each class's most probable images, as many as a class has on average, `(classes, images per class)`."""
    n_likely = max(1, len(images) // len(texts))
    likely = np.empty((len(texts), n_likely), dtype=np.int64)
    step = max(1, _CHUNK_FLOATS // len(images))
    for start in range(0, len(texts), step):
        log_probability = logit_scale * (texts[start : start + step] @ images.T) - names.log_totals
        likely[start : start + step] = np.argpartition(-log_probability, n_likely - 1, axis=1)[:, :n_likely]
    return likely


def _concentration(likely: Ints, owners: Ints) -> Floats:
    """Return the share of each row of images that lies in the cluster where most of them lie (Figure 1)."""
    shares = [np.bincount(owners[row]).max() / len(row) for row in likely]
    return np.asarray(shares, dtype=np.float32)


def _spread(values: NDArray[Any], classes: Ints, n_classes: int, fill: float) -> Floats:
    """Return values of the classes that take part as an array over all classes."""
    spread = np.full(n_classes, fill, dtype=np.float32)
    spread[classes] = values
    return spread


def _check(images: Floats, texts: Floats, classes: Sequence[int] | Ints | None) -> Ints:
    """Return the sorted ids of the classes that take part, or raise for input that cannot be used."""
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1]:
        raise InputError(
            f"Expected embeddings (images, width) and (classes, width), got {images.shape} and {texts.shape}."
        )
    ids = np.arange(len(texts)) if classes is None else np.unique(np.asarray(classes, dtype=np.int64))
    problems = []
    if not len(images):
        problems.append("there are no images")
    if not len(ids):
        problems.append("no class takes part")
    problems += [f"class {c}: ids run from 0 to {len(texts) - 1}" for c in ids if not 0 <= c < len(texts)]
    raise_all(problems, "Mismatched classes cannot be looked for")
    return ids.astype(np.int64)
