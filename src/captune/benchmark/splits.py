"""Learning settings: what of a dataset a method may see, and the truth that it may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np

from captune.benchmark.datasets.base import LoadedDataset
from captune.benchmark.longtail import long_tail
from captune.core.arrays import Ints
from captune.core.errors import InputError, raise_all
from captune.data.images import ImageCollection
from captune.data.task import AdaptationTask, LabeledImages, no_labels
from captune.data.vocabulary import Vocabulary

Setting = Literal["ul", "ssl", "trzsl"]

PAPER_SPLIT_SEEDS: Mapping[Setting, tuple[int, int, int]] = MappingProxyType(
    {"ul": (0, 0, 0), "ssl": (0, 0, 0), "trzsl": (500, 0, 200)}
)
"""The seed of the split in each of the three runs of a published table: labels stay, seen classes change."""


@dataclass(frozen=True, eq=False)
class Truth:
    """What a result is measured with; no method takes this type, and nothing in a task leads to it.

    Attributes:
        test_labels: Class ids of the test images.
        unlabeled_labels: Class ids of the task's unlabeled images, to measure pseudo-labels with.
        seen_classes: Classes whose images are labeled in transductive zero-shot learning, sorted; else empty.
    """

    test_labels: Ints
    unlabeled_labels: Ints
    seen_classes: Ints

    @property
    def is_transductive(self) -> bool:
        """Return whether a result is the harmonic mean of seen and unseen accuracy."""
        return bool(self.seen_classes.size)


@dataclass(frozen=True, eq=False)
class Split:
    """One learning setting of one dataset: what a method sees, the images to measure on, and the truth apart."""

    task: AdaptationTask
    test: ImageCollection
    truth: Truth


def make_split(
    data: LoadedDataset,
    setting: Setting,
    seed: int,
    n_labels: int = 2,
    seen_share: float = 0.62,
    template: str = "a photo of a {}",
    unlabeled_share: float = 1.0,
    imbalance: float = 1.0,
) -> Split:
    """Return what a method sees in a learning setting.

    `ul` has no labels; `ssl` has `n_labels` a class; in `trzsl` the classes of `seen_share` are labeled in full and
    the unlabeled images are all of other classes. `unlabeled_share` keeps this part of the unlabeled images of every
    class, and an `imbalance` above 1 makes a long tail of what is left, with this ratio of largest to smallest class;
    labeled images stay as they are.
    """
    _check(data, setting, n_labels, seen_share, unlabeled_share, imbalance)
    labels, seen = data.pool_labels, np.empty(0, dtype=np.int64)
    given = np.empty(0, dtype=np.int64)
    if setting == "ssl":
        given = _some_of_every_class(labels, len(data.names), n_labels, seed)
    elif setting == "trzsl":
        seen = draw_seen_classes(len(data.names), seen_share, seed)
        given = np.flatnonzero(np.isin(labels, seen))
    unlabeled = np.setdiff1d(np.arange(len(labels)), given)
    unlabeled = _thin(unlabeled, labels, unlabeled_share, seed)
    if imbalance != 1.0:
        unlabeled = unlabeled[long_tail(labels[unlabeled], imbalance, seed)]
    task = AdaptationTask(
        vocabulary=Vocabulary(data.names, (template,)),
        unlabeled=_alone(data.pool, unlabeled),
        labeled=LabeledImages(_alone(data.pool, given), labels[given]) if given.size else no_labels(),
        target_classes=np.setdiff1d(np.arange(len(data.names)), seen),
    )
    return Split(task, data.test, Truth(data.test_labels, labels[unlabeled], np.sort(seen)))


def _alone(images: ImageCollection, positions: Ints) -> ImageCollection:
    """Return a subset that holds no other names; a plain one shares those of the whole, test images among them."""
    return ImageCollection(tuple(images.subset(positions).paths), images.root)


def _some_of_every_class(labels: Ints, n_classes: int, n_labels: int, seed: int) -> Ints:
    """Return positions of labeled images, drawn as the published tables draw them: the same seed for every class."""
    chosen = [
        np.random.RandomState(seed).choice(np.flatnonzero(labels == c), size=n_labels, replace=False)
        for c in range(n_classes)
    ]
    return np.concatenate(chosen).astype(np.int64)


def draw_seen_classes(n_classes: int, seen_share: float, seed: int) -> Ints:
    """Return the classes with labels, drawn as the published tables draw them."""
    chosen = np.random.RandomState(seed).choice(n_classes, size=int(n_classes * seen_share), replace=False)
    return np.asarray(chosen, dtype=np.int64)


def _thin(positions: Ints, labels: Ints, share: float, seed: int) -> Ints:
    """Return a share of the positions of every class, at least one, in their old order; smaller shares are nested."""
    if share == 1.0:
        return positions
    kept = []
    for c in np.unique(labels[positions]):
        own = positions[labels[positions] == c]
        order = np.random.default_rng([seed, int(c)]).permutation(len(own))
        kept.append(own[order[: max(1, round(share * len(own)))]])
    return np.sort(np.concatenate(kept))


def _check(
    data: LoadedDataset, setting: str, n_labels: int, seen_share: float, unlabeled_share: float, imbalance: float
) -> None:
    n_classes, problems = len(data.names), []
    if setting not in get_args(Setting):
        raise InputError(f"No learning setting {setting!r}: expected one of {', '.join(get_args(Setting))}.")
    fewest = int(np.bincount(data.pool_labels, minlength=n_classes).min())
    if setting == "ssl" and not 1 <= n_labels <= fewest:
        problems.append(f"n_labels is {n_labels}, expected 1 to {fewest}, the images of the smallest class")
    elif setting == "ssl" and n_labels * n_classes == len(data.pool):
        problems.append(f"n_labels is {n_labels}, which labels the whole pool and leaves no unlabeled image")
    if setting == "trzsl" and not 1 <= int(n_classes * seen_share) < n_classes:
        problems.append(f"seen_share is {seen_share}, which leaves no seen or no unseen class among {n_classes}")
    if not 0 < unlabeled_share <= 1:
        problems.append(f"unlabeled_share is {unlabeled_share}, expected more than 0 and at most 1")
    if not imbalance >= 1:
        problems.append(f"imbalance is {imbalance}, expected 1 or more, the largest class over the smallest")
    raise_all(problems, f"This split ({setting}) cannot be made")
