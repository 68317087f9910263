"""Groups of confused classes, for reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from captune.concepts.confusion import class_prototypes
from captune.core.arrays import Floats, Ints, unit_rows
from captune.core.errors import InputError


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
    if prototypes.shape != class_embeddings.shape:
        raise InputError(f"prototypes: expected shape {class_embeddings.shape}, got {prototypes.shape}.")
    views = [prototypes, class_embeddings]
    if probabilities is not None:
        if probabilities.shape[1:] != prototypes.shape[:1]:
            raise InputError(f"probabilities: expected {len(prototypes)} classes (columns), got {probabilities.shape}.")
        views.append(probabilities.T)
    return np.asarray(np.mean([_standardized_cosines(view) for view in views], axis=0))


def confused_groups(
    closeness: NDArray[np.float64], at_least: float = 1.0, largest: int = 6
) -> tuple[ConfusedGroup, ...]:
    """Return groups of two to `largest` classes whose mean closeness is `at_least` that high, the closest first.

    Pairs are merged from the closest on, if the mean closeness between the two groups is at least `at_least` (so that
    no chain of neighbors runs through all classes) and the merged group is not too large.
    """
    n_classes = len(closeness)
    members = {c: [c] for c in range(n_classes)}
    group_of = list(range(n_classes))
    rows, columns = np.triu_indices(n_classes, 1)
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
        ConfusedGroup(tuple(sorted(group)), _mean_closeness(closeness, group))
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


def _mean_closeness(closeness: NDArray[np.float64], group: list[int]) -> float:
    within = closeness[np.ix_(group, group)]
    return float(within[np.triu_indices(len(group), 1)].mean())


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
