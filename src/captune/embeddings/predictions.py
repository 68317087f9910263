"""Class probabilities of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from captune.core.arrays import Bools, Floats, Ints, Positions, check_probabilities, row_parts
from captune.core.errors import InputError, import_extra
from captune.core.text import Displayed
from captune.data.images import ImageCollection
from captune.data.vocabulary import NONE

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Predictions(Displayed):
    """Class probabilities of some images of a collection; there is a column for every class.

    Attributes:
        image_index: Positions of the images, `(images,)`.
        probabilities: `(images, classes)`.
        names: Class names; empty if they are not known.
        images: The collection; None if it is not known.
        skipped: Why images of the collection that cannot be read have no row, by position.
        fits: How well each image fits the names, from above 0 (worst of all images) to 1 (best), `(images,)`; 0 if a
            person said that none fits; None if it is not known.
        reject: Images with lower `fits` are predicted as none of the classes.
    """

    image_index: Positions
    probabilities: Floats
    names: tuple[str, ...] = ()
    images: ImageCollection | None = None
    fits: Floats | None = None
    reject: float = 0.0
    skipped: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.probabilities.ndim != 2 or len(self.image_index) != len(self.probabilities):
            expected = f"({len(self.image_index)}, classes), one row per image"
            raise InputError(f"Expected probabilities of shape {expected}, got {self.probabilities.shape}.")
        if self.fits is not None and self.fits.shape != self.image_index.shape:
            raise InputError(f"Expected {len(self.image_index)} values of fits, one per image, got {self.fits.shape}.")
        for rows in row_parts(*self.probabilities.shape):
            check_probabilities(self.probabilities[rows])

    @cached_property
    def labels(self) -> Ints:
        """Return the most probable class of each image."""
        return self.probabilities.argmax(axis=1)

    @cached_property
    def confidence(self) -> Floats:
        """Return the probability of the most probable class of each image."""
        return self.probabilities.max(axis=1)

    @property
    def is_rejected(self) -> Bools:
        """Return which images are predicted as none of the classes, `(images,)`."""
        if self.fits is None:
            return np.zeros(len(self.image_index), dtype=np.bool_)
        return (self.fits < self.reject) | (self.fits == 0)

    def to_pandas(self, probabilities: bool = False) -> DataFrame:
        """Return a table `(path, label, confidence, fits)` whose index holds the positions of the images.

        With `probabilities`, there is also a column for each class.
        """
        pandas = import_extra("pandas", "pandas")
        names = np.asarray(self.names or np.arange(self.probabilities.shape[1]), dtype=object)
        labels = np.where(self.is_rejected, NONE, names[self.labels])
        columns: dict[str, object] = {"label": labels, "confidence": self.confidence}
        if self.fits is not None:
            columns["fits"] = self.fits
        if self.images is not None:
            columns = {"path": [self.images.name(position) for position in self.image_index], **columns}
        if probabilities:
            of_classes = [f"{name} (class)" if name in columns else name for name in names]
            columns |= dict(zip(of_classes, self.probabilities.T, strict=True))
        table: DataFrame = pandas.DataFrame(columns, index=pandas.Index(self.image_index, name="image"))
        return table

    def summary(self) -> dict[str, object]:
        """Return the size, the mean confidence and the classes that no image has."""
        n_images, n_classes = self.probabilities.shape
        return {
            "images": n_images,
            "classes": n_classes,
            "never_predicted": n_classes - len(np.unique(self.labels)),
            "mean_confidence": round(float(self.confidence.mean()), 3) if n_images else None,
        }
