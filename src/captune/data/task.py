"""The task of a method: class names, unlabeled images and, optionally, some labeled ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from captune.core.arrays import Bools, Ints
from captune.core.errors import InputError, raise_all
from captune.data.images import ImageCollection
from captune.data.vocabulary import Vocabulary

NONE_ID = -2
"""In arrays of labels: the image fits none of the classes. -1 is an image without a label."""


@dataclass(frozen=True)
class LabeledImages:
    """Images with their class ids, `(images,)`."""

    images: ImageCollection
    labels: Ints
    is_single: Bools = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    """Whether a label was given to this image alone (the default). Images named with their group are its most typical
    ones, so their labels say little about the accuracy on others."""

    def __post_init__(self) -> None:
        if self.is_single.size == 0:
            object.__setattr__(self, "is_single", np.ones(self.labels.shape, dtype=np.bool_))
        if self.labels.shape != (len(self.images),):
            raise InputError(f"Expected {len(self.images)} labels, one per image, got shape {self.labels.shape}.")

    def __len__(self) -> int:
        return len(self.images)


def no_labels() -> LabeledImages:
    """Return the empty set of labeled images."""
    return LabeledImages(ImageCollection((), Path()), np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class AdaptationTask:
    """Everything that a method may see; the labels of the unlabeled images are not part of it."""

    vocabulary: Vocabulary
    unlabeled: ImageCollection
    labeled: LabeledImages = field(default_factory=no_labels)
    target_classes: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The classes that pseudo-labels may have; all of them unless some are fully labeled."""
    unknown: ImageCollection = field(default_factory=lambda: ImageCollection((), Path()))
    """Images of which a person said that they fit none of the classes; no method trains on them."""

    def __post_init__(self) -> None:
        n_classes = len(self.vocabulary)
        if self.target_classes.size == 0:
            object.__setattr__(self, "target_classes", np.arange(n_classes, dtype=np.int64))
        problems = [] if len(self.unlabeled) else ["there are no unlabeled images"]
        for what, ids in (("label", self.labeled.labels), ("target class", self.target_classes)):
            wrong = ids[(ids < 0) | (ids >= n_classes)]
            if wrong.size:
                problems.append(f"{what} {int(wrong[0])} is not a class id (0 to {n_classes - 1})")
        raise_all(problems, "Invalid task")

    @property
    def seen_classes(self) -> Ints:
        """Return the fully labeled classes, which pseudo-labels may not have."""
        return np.setdiff1d(np.arange(len(self.vocabulary)), self.target_classes)


def make_task(
    vocabulary: Vocabulary, images: ImageCollection, labels: Ints | None, labeled_are_complete: bool = False
) -> AdaptationTask:
    """Split images by their labels into labeled, unlabeled (-1) and unknown ones (`NONE_ID`).

    If the classes with labels are complete, pseudo-labels are limited to the others (transductive zero-shot learning).
    """
    if labels is None:
        return AdaptationTask(vocabulary, images)
    known = np.flatnonzero(labels >= 0)
    labeled = LabeledImages(images.subset(known), labels[known])
    unlabeled, unknown = (images.subset(np.flatnonzero(labels == kind)) for kind in (-1, NONE_ID))
    without = np.setdiff1d(np.arange(len(vocabulary)), labels[known])
    targets = without if labeled_are_complete and len(known) else np.empty(0, dtype=np.int64)
    return AdaptationTask(vocabulary, unlabeled, labeled, targets, unknown)
