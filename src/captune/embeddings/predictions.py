"""Class probabilities of images."""

from __future__ import annotations

from dataclasses import dataclass

from captune.core.arrays import Floats, Ints, check_probabilities
from captune.core.errors import InputError
from captune.core.scratch import row_parts


@dataclass(frozen=True)
class Predictions:
    """Class probabilities of some images of a collection; there is a column for every class.

    Attributes:
        image_index: Positions of the images, `(images,)`.
        probabilities: `(images, classes)`.
    """

    image_index: Ints
    probabilities: Floats

    def __post_init__(self) -> None:
        if self.probabilities.ndim != 2 or len(self.image_index) != len(self.probabilities):
            raise InputError(
                f"Expected probabilities of shape ({len(self.image_index)}, classes), one row per image, "
                f"got {self.probabilities.shape}."
            )
        for rows in row_parts(*self.probabilities.shape):
            check_probabilities(self.probabilities[rows])

    @property
    def labels(self) -> Ints:
        """Return the most probable class of each image."""
        return self.probabilities.argmax(axis=1)

    @property
    def confidence(self) -> Floats:
        """Return the probability of the most probable class of each image."""
        return self.probabilities.max(axis=1)
