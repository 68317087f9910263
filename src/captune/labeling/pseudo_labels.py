"""Pseudo-labels: labels that a model assigned to unlabeled images, and where each came from."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Bools, Floats, Ints
from captune.core.errors import InputError, raise_all


class Source(IntEnum):
    """What a pseudo-label is based on: the class name, a description of the class, or a trained model."""

    NAME = 0
    DESCRIPTION = 1
    MODEL = 2


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """Labels of some images, each image at most once; all arrays have one entry per pseudo-labeled image.

    `image_index` holds positions in the image collection, `round` the round or epoch in which the label was
    assigned, `source` a `Source`, and `candidates` `(pseudo-labeled images, classes)` the candidate classes.
    """

    image_index: Ints
    labels: Ints
    confidence: Floats
    n_classes: int
    round: Ints
    source: Ints
    candidates: Bools | None = None

    def __post_init__(self) -> None:
        raise_all(self._problems(), "These pseudo-labels cannot be used")

    @classmethod
    def create(
        cls, image_index: Ints, labels: Ints, confidence: Floats, n_classes: int, round_number: int = 0
    ) -> PseudoLabels:
        """Return pseudo-labels of a trained model that all have the same round."""
        rounds, sources = (np.full(len(image_index), value, dtype=np.int64) for value in (round_number, Source.MODEL))
        return cls(image_index, labels, confidence, n_classes, rounds, sources)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, for saving."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, np.ndarray)}

    def __len__(self) -> int:
        return len(self.image_index)

    def subset(self, chosen: Ints | Bools) -> PseudoLabels:
        """Return the chosen entries, by position in these arrays or by mask."""
        parts: dict[str, Any] = {name: array[chosen] for name, array in self.arrays().items()}
        return replace(self, **parts)

    def reindexed(self, image_index: Ints) -> PseudoLabels:
        """Return the same labels with each position replaced by the entry of `image_index` at that position."""
        return replace(self, image_index=image_index[self.image_index])

    def stamped(self, round_number: int, source: Source) -> PseudoLabels:
        """Return the same labels with another round and source."""
        return replace(self, round=np.full_like(self.round, round_number), source=np.full_like(self.source, source))

    def extend(self, other: PseudoLabels) -> PseudoLabels:
        """Return the union, in image order; an image in both keeps the label it has here."""
        if self.n_classes != other.n_classes:
            raise InputError(f"Expected pseudo-labels of {self.n_classes} classes, got {other.n_classes}.")
        new = other.subset(~np.isin(other.image_index, self.image_index)).arrays()
        both: dict[str, Any] = {k: np.concatenate([v, new[k]]) for k, v in self.arrays().items() if k in new}
        return PseudoLabels(n_classes=self.n_classes, **both).subset(np.argsort(both["image_index"]))

    def counts(self) -> Ints:
        """Return how many images each class has."""
        return np.asarray(np.bincount(self.labels, minlength=self.n_classes), dtype=np.int64)

    def precision(self, truth: Ints) -> float:
        """Return the share of correct labels, nan without labels; `truth` has one class id per image."""
        return float(np.mean(self.labels == truth[self.image_index])) if len(self) else float("nan")

    def _problems(self) -> list[str]:
        n = len(self)
        problems = [
            f"{name}: expected shape {expected}, got {array.shape}"
            for name, array in self.arrays().items()
            if array.shape != (expected := (n, self.n_classes) if name == "candidates" else (n,))
        ]
        if problems or not n:
            return problems
        for name, ids, end in (("labels", self.labels, self.n_classes), ("source", self.source, len(Source))):
            if not 0 <= ids.min() <= ids.max() < end:
                problems.append(f"{name}: expected ids in 0..{end - 1}, got {ids.min()}..{ids.max()}")
        if self.image_index.min() < 0 or len(np.unique(self.image_index)) < n:
            problems.append("image_index: expected positions from 0, each image once")
        if not np.isfinite(self.confidence).all():
            problems.append("confidence: expected finite numbers")
        if not problems and self.candidates is not None and not self.candidates[np.arange(n), self.labels].all():
            problems.append("candidates: expected the label of every image among its candidates")
        return problems
