"""Which classes are confused, for reports, and the confusion-aware calibrated margin (Section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from captune.core.arrays import Floats, Ints, unit_rows
from captune.core.errors import InputError

PAPER_MARGIN = 12.0
PAPER_LOGIT_SCALE = 100.0


@dataclass(frozen=True, eq=False)
class ConfusionMargin:
    """The margin matrix and the quantities from which it is computed.

    `neglect` is 0 for the most predicted class and 1 for one never predicted: delta of Eq. 4.
    """

    matrix: Floats
    similarity: Floats
    counts: Ints
    neglect: NDArray[np.float64]
    imbalance: float


def class_prototypes(embeddings: Floats, labels: Ints, class_embeddings: Floats) -> Floats:
    """Return the normalized mean embedding of each class's images; a class without images uses its text."""
    sums = np.zeros(class_embeddings.shape, dtype=np.float64)
    np.add.at(sums, labels, embeddings)
    has_images = np.bincount(labels, minlength=len(sums)) > 0
    # The mean and the sum have the same direction, and only the direction matters in a cosine.
    return unit_rows(np.where(has_images[:, None], sums, class_embeddings).astype(np.float32))


def class_similarity(prototypes: Floats, class_embeddings: Floats, rows: Ints | None = None) -> Floats:
    """Return the larger of the cosines between two classes' prototypes and between their texts (Eq. 2).

    With `rows`, only those of these classes are computed; the others are zero.
    """
    images, texts = unit_rows(prototypes), unit_rows(class_embeddings)
    if rows is None:
        return np.maximum(images @ images.T, texts @ texts.T)
    found = np.zeros((len(images), len(images)), dtype=np.float32)
    found[rows] = np.maximum(images[rows] @ images.T, texts[rows] @ texts.T)
    return found


def confident_counts(probabilities: Floats, tau: float) -> Ints:
    """Return how many images are predicted as each class with a probability of at least tau (Eq. 3)."""
    predicted = probabilities.argmax(axis=1)[probabilities.max(axis=1) >= tau]
    return np.asarray(np.bincount(predicted, minlength=probabilities.shape[1]), dtype=np.int64)


def confusion_margin(
    similarity: ArrayLike,
    counts: ArrayLike,
    *,
    margin: float = PAPER_MARGIN,
    logit_scale: float | None = None,
    labeled: Sequence[int] | Ints = (),
) -> ConfusionMargin:
    """Return the margin of each pair of classes, from their similarity and their confident counts (Eqs. 4 to 7).

    `similarity` is `(classes, classes)`; `counts` `(classes,)` says how many images are predicted as each class.
    `margin` is in logits at CLIP's scale of 100; with `logit_scale` it is converted to logits at that scale. Labeled
    classes have no margin and do not enter the largest count: they are learned from labels rather than pseudo-labels.

    The margin belongs to the label: Eq. 1 adds row y to the logits of the rivals of label y, so a neglected class must
    win by more, most of all against similar classes. (Scaled by column, it would instead push down a rival that is
    already neglected.)

    Examples:
        Class 1 is hardly ever predicted, so it must win by more, above all against class 0, which is similar.

        >>> similarity = [[1.0, 0.9, 0.2], [0.9, 1.0, 0.3], [0.2, 0.3, 1.0]]
        >>> confusion_margin(similarity, counts=[40, 4, 36]).matrix.round(1)
        array([[0. , 0. , 0. ],
               [8.7, 0. , 2.9],
               [0.2, 0.3, 0. ]], dtype=float32)
    """
    similarity, counts = np.asarray(similarity, dtype=np.float32), np.asarray(counts, dtype=np.int64)
    if counts.ndim != 1 or counts.min(initial=0) < 0:
        raise InputError(f"counts: expected shape (classes,) and no negative number, got {counts.tolist()}.")
    if similarity.shape != (len(counts), len(counts)):
        raise InputError(f"similarity: expected shape {(len(counts),) * 2}, got {similarity.shape}.")
    if logit_scale is not None:
        margin = margin * logit_scale / PAPER_LOGIT_SCALE
    is_rival = np.ones(len(counts), dtype=np.bool_)
    is_rival[np.asarray(labeled, dtype=np.int64)] = False
    # Without any confident image, all ratios are 1, so that there is no margin.
    largest = int(counts[is_rival].max(initial=0))
    ratios = np.where(is_rival & (largest > 0), counts / max(largest, 1), 1.0)
    neglect = 1.0 - ratios  # delta of Eq. 4
    imbalance = float(neglect.max(initial=0.0))  # Delta of Eq. 5
    matrix = np.empty_like(similarity)
    np.multiply(similarity, (margin * imbalance * neglect)[:, None], out=matrix, casting="same_kind")  # Eqs. 6 and 7
    np.fill_diagonal(matrix, 0.0)
    return ConfusionMargin(matrix, similarity, counts, neglect, imbalance)


@dataclass(frozen=True)
class ConfusedGroup:
    """Classes that are closer to each other than the average pair; closeness is in standard deviations."""

    classes: tuple[int, ...]
    closeness: float


def class_closeness(
    prototypes: Floats, class_embeddings: Floats, probabilities: Floats | None = None
) -> NDArray[np.float64]:
    """Return how much closer two classes are than the average pair, in standard deviations; zero diagonal.

    It is the mean of up to three views, each standardized over all pairs since their cosines have different scales:
    the classes' images, their texts and, with `probabilities` `(images, classes)`, the images they share.
    """
    views = [prototypes, class_embeddings, *(() if probabilities is None else (probabilities.T,))]
    return np.asarray(np.mean([_standardized_cosines(view) for view in views], axis=0))


def confused_groups(
    closeness: NDArray[np.float64], at_least: float = 1.0, largest: int = 6
) -> tuple[ConfusedGroup, ...]:
    """Return groups of two to `largest` classes whose mean closeness is `at_least` that high, the closest first.

    Pairs are merged from the closest on, if the mean closeness between the two groups is at least `at_least` (so that
    no chain of neighbors runs through all classes) and the merged group is not too large.
    """
    group_of = list(range(len(closeness)))
    members = {c: [c] for c in group_of}
    rows, columns = np.triu_indices(len(closeness), 1)
    values = closeness[rows, columns]
    order = np.argsort(-values, kind="stable")
    for pair in order[values[order] >= at_least]:
        first, second = sorted((group_of[rows[pair]], group_of[columns[pair]]))
        if first == second or len(members[first]) + len(members[second]) > largest:
            continue
        if closeness[np.ix_(members[first], members[second])].mean() >= at_least:
            for moved in members.pop(second):
                group_of[moved] = first
                members[first].append(moved)
    groups = [
        ConfusedGroup(
            tuple(sorted(group)), float(closeness[np.ix_(group, group)][np.triu_indices(len(group), 1)].mean())
        )
        for group in members.values()
        if len(group) > 1
    ]
    return tuple(sorted(groups, key=lambda group: (-group.closeness, group.classes)))


def groups_of_predictions(
    embeddings: Floats, labels: Ints, class_embeddings: Floats, probabilities: Floats
) -> tuple[ConfusedGroup, ...]:
    """Return the confused groups of images `(images, width)` with predicted labels; fewer than three classes have none.

    With zero-shot labels and probabilities, runs with different methods on the same images have the same groups.
    """
    if len(class_embeddings) < 3:
        return ()
    prototypes = class_prototypes(embeddings, labels, class_embeddings)
    return confused_groups(class_closeness(prototypes, class_embeddings, probabilities))


def _standardized_cosines(vectors: Floats) -> NDArray[np.float64]:
    unit = unit_rows(vectors).astype(np.float64)
    cosines = unit @ unit.T
    pairs = cosines[np.triu_indices(len(cosines), 1)]
    spread = float(pairs.std()) if pairs.size else 0.0
    center = float(pairs.mean()) if pairs.size else 0.0
    # With a single pair, or if all pairs are equally close, no pair is an outlier.
    standardized = (cosines - center) / spread if spread > 1e-9 else np.zeros_like(cosines)
    np.fill_diagonal(standardized, 0.0)
    return standardized
