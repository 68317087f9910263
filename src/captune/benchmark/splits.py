"""Learning settings: which images and labels a method sees, and the true labels it must not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import numpy as np
from annotated_types import Ge, Gt, Lt

from captune.benchmark.datasets.base import LoadedDataset
from captune.core.arrays import Ints
from captune.core.errors import InputError, raise_all
from captune.core.files import digest
from captune.core.settings import NonNegative, Positive, PositiveShare, ShareBelowOne
from captune.data.images import ImageCollection
from captune.data.precomputed import Embeddings
from captune.data.task import AdaptationTask, LabeledImages, no_labels
from captune.data.vocabulary import Vocabulary

Setting = Literal["ul", "ssl", "trzsl"]
PUBLISHED_SPLIT_SEEDS: Mapping[Setting, int] = {"ul": 0, "ssl": 0, "trzsl": 500}
"""The seeds of the published splits, which are the same in all runs."""


@dataclass(frozen=True)
class SplitSettings:
    """Which part of a dataset a method may see.

    Attributes:
        n_labels: Labeled images per class in semi-supervised learning.
        seen_share: Fraction of the classes that are labeled in transductive zero-shot learning.
        unlabeled_share: Fraction of the unlabeled images to keep.
        images_per_class: Most unlabeled images of each class; 0 keeps all of them.
        imbalance: Ratio of the largest to the smallest class among the unlabeled images; 1 keeps all of them.
        absent_share: Fraction of the class names that no image shows, neither unlabeled nor test (without labels only).
        embedded: Whether methods get embeddings instead of images, and so no augmented views, which take long.
        leaky: Whether to add the test images to the pool, as the paper does for EuroSAT.
    """

    n_labels: Positive = 2
    seen_share: Annotated[float, Gt(0), Lt(1)] = 0.62
    unlabeled_share: PositiveShare = 1.0
    images_per_class: NonNegative = 0
    imbalance: Annotated[float, Ge(1)] = 1.0
    absent_share: ShareBelowOne = 0.0
    embedded: bool = False
    leaky: bool = False


@dataclass(frozen=True, eq=False)
class Truth:
    """True labels for evaluation; no method accepts this type, and a task holds no reference to it."""

    test_labels: Ints
    unlabeled_labels: Ints
    seen_classes: Ints
    """Labeled classes in transductive zero-shot learning, sorted; otherwise empty."""

    @property
    def is_transductive(self) -> bool:
        """Return whether the score is the harmonic mean of seen and unseen accuracy."""
        return bool(self.seen_classes.size)


@dataclass(frozen=True, eq=False)
class Split:
    """One learning setting of a dataset: the task a method sees, the test images, and the true labels."""

    task: AdaptationTask
    test: ImageCollection
    truth: Truth


def make_split(
    data: LoadedDataset,
    setting: Setting,
    seed: int,
    options: SplitSettings | None = None,
    template: str = "a photo of a {}",
) -> Split:
    """Return what a method sees in a learning setting.

    In `ul` nothing is labeled, in `ssl` a few images per class, and in `trzsl` all images of the seen classes, so that
    every unlabeled image belongs to another class. The options never remove labeled images, and of the test images
    only those of absent classes.
    """
    options = options or SplitSettings()
    n_classes = len(data.names)
    pool, labels = _leaky_pool(data) if options.leaky else (data.pool, data.pool_labels)
    _check(n_classes, labels, setting, options)
    seen = labeled = np.empty(0, dtype=np.int64)
    if setting == "ssl":
        # As in the published tables: with the same seed for every class.
        own = (np.flatnonzero(labels == c) for c in range(n_classes))
        drawn = [np.random.RandomState(seed).choice(images, size=options.n_labels, replace=False) for images in own]
        labeled = np.concatenate(drawn).astype(np.int64)
    elif setting == "trzsl":
        seen = draw_seen_classes(n_classes, options.seen_share, seed)
        labeled = np.flatnonzero(np.isin(labels, seen))
    unlabeled = np.setdiff1d(np.arange(len(labels)), labeled)
    absent = np.random.default_rng(seed).permutation(n_classes)[: int(n_classes * options.absent_share)]
    unlabeled = unlabeled[~np.isin(labels[unlabeled], absent)]
    # A fraction of every class, at least one image; smaller fractions are nested in larger ones.
    classes, sizes = np.unique(labels[unlabeled], return_counts=True)
    most = options.images_per_class or len(labels)
    kept = [min(max(1, round(options.unlabeled_share * size)), most) for size in sizes.tolist()]
    unlabeled = unlabeled[_draw_by_class(labels[unlabeled], classes, kept, seed)]
    if options.imbalance != 1.0:
        unlabeled = unlabeled[long_tail(labels[unlabeled], options.imbalance, seed)]
    used, n_unlabeled = _copy_subset(pool, np.concatenate([unlabeled, labeled])), len(unlabeled)
    known = used.subset(np.arange(n_unlabeled, len(used)))
    task = AdaptationTask(
        vocabulary=Vocabulary(data.names, (template,)),
        unlabeled=used.subset(np.arange(n_unlabeled)),
        labeled=LabeledImages(known, labels[labeled]) if labeled.size else no_labels(),
        target_classes=np.setdiff1d(np.arange(n_classes), seen),
    )
    test = np.flatnonzero(~np.isin(data.test_labels, absent))
    truth = Truth(data.test_labels[test], labels[unlabeled], np.sort(seen))
    return Split(task, data.test if not absent.size else data.test.subset(test), truth)


def _leaky_pool(data: LoadedDataset) -> tuple[ImageCollection, Ints]:
    """Return the pool with the test images, sorted by class and path as in the published splits."""
    if isinstance(data.pool, Embeddings):
        raise InputError("leaky: expected false, because this dataset has embeddings instead of images.")
    paths = data.pool.paths + data.test.paths
    labels = np.concatenate([data.pool_labels, data.test_labels])
    order = sorted(range(len(paths)), key=lambda i: (labels[i], paths[i]))
    return ImageCollection(tuple(paths[i] for i in order), data.pool.root), labels[order]


def _copy_subset(images: ImageCollection, positions: Ints) -> ImageCollection:
    """Return a subset that does not share the embeddings of all images."""
    chosen = images.subset(positions)
    if isinstance(chosen, Embeddings):
        return Embeddings(chosen.vectors, map(chosen.name, range(len(chosen))))
    return chosen


def draw_seen_classes(n_classes: int, seen_share: float, seed: int) -> Ints:
    """Return the labeled classes, drawn as in the published tables."""
    chosen = np.random.RandomState(seed).choice(n_classes, size=int(n_classes * seen_share), replace=False)
    return np.asarray(chosen, dtype=np.int64)


def long_tail(labels: Ints, ratio: float, seed: int = 0) -> Ints:
    """Return ascending positions in `labels` `(images,)` of a long-tailed sample.

    Classes are put in random order; the i-th of C keeps n * ratio^(-i / (C - 1)) images, where n is the size of the
    largest class, but at least one and at most all of its own. The images depend on (seed, class) only, so a steeper
    tail is a subset of a flatter one.
    """
    if not ratio >= 1:
        raise InputError(f"ratio: expected 1 or more (largest class over smallest), got {ratio}.")
    classes, sizes = np.unique(labels, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(classes))
    shares = [ratio ** (-place / max(1, len(classes) - 1)) for place in range(len(classes))]
    kept = [max(1, round(int(sizes.max()) * share)) for share in shares]
    return _draw_by_class(labels, classes[order], kept, seed)


def _draw_by_class(labels: Ints, classes: Ints, sizes: Sequence[int], seed: int) -> Ints:
    """Return ascending positions of so many images of each class, at most all of them, that a seed draws."""
    drawn = [np.zeros(0, dtype=np.int64)]
    for c, size in zip(classes.tolist(), sizes, strict=True):
        drawn.append(np.random.default_rng([seed, c]).permutation(np.flatnonzero(labels == c))[:size])
    return np.sort(np.concatenate(drawn))


def _check(n_classes: int, labels: Ints, setting: str, options: SplitSettings) -> None:
    if setting not in get_args(Setting):
        raise InputError(f"No learning setting {setting!r}: expected one of {', '.join(get_args(Setting))}.")
    problems = []
    fewest = int(np.bincount(labels, minlength=n_classes).min())
    if setting == "ssl" and options.n_labels > fewest:
        problems.append(f"n_labels = {options.n_labels}: expected 1 to {fewest}, the size of the smallest class")
    elif setting == "ssl" and options.n_labels * n_classes == len(labels):
        problems.append(f"n_labels = {options.n_labels} labels the whole pool: no unlabeled images are left")
    if setting != "ul" and options.absent_share:
        problems.append("absent_share: expected 0, because classes with labels have images")
    if setting == "trzsl" and not 1 <= int(n_classes * options.seen_share) < n_classes:
        problems.append(f"seen_share = {options.seen_share} leaves no seen or no unseen class out of {n_classes}")
    raise_all(problems, f"This split ({setting}) is not possible")


def shared_images(pool: ImageCollection, test: ImageCollection) -> list[tuple[int, int]]:
    """Return (pool position, test position) of each test image that is in the pool byte for byte."""
    contents: list[dict[int, object]]
    if isinstance(pool, Embeddings) and isinstance(test, Embeddings):
        contents = [{i: vector.tobytes() for i, vector in enumerate(part.vectors)} for part in (pool, test)]
    else:
        try:
            sizes = [[path.stat().st_size for path in images.paths] for images in (pool, test)]
            common = set(sizes[0]) & set(sizes[1])  # only files whose size occurs on both sides are read
            contents = [
                {i: digest(images.paths[i].read_bytes()) for i, size in enumerate(own) if size in common}
                for images, own in zip((pool, test), sizes, strict=True)
            ]
        except OSError as error:
            raise InputError(f"{error.filename!r} cannot be read: {error.strerror}.") from error
    first = {content: i for i, content in reversed(contents[0].items())}
    return [(first[content], i) for i, content in contents[1].items() if content in first]
