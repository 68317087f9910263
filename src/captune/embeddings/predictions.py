"""What a classifier says about some images of a collection."""

from __future__ import annotations

from dataclasses import dataclass

from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError


@dataclass(frozen=True)
class Predictions:
    """Class probabilities of some images of a collection; columns are always all classes.

    Attributes:
        image_index: Positions of the images, `(images,)`.
        probabilities: `(images, classes)`.
    """

    image_index: Ints
    probabilities: Floats

    def __post_init__(self) -> None:
        if self.probabilities.ndim != 2 or len(self.image_index) != len(self.probabilities):
            raise InputError(
                f"Expected one row of probabilities for each of {len(self.image_index)} images, "
                f"got shape {self.probabilities.shape}."
            )

    @property
    def labels(self) -> Ints:
        """Return the most probable class of each image."""
        return self.probabilities.argmax(axis=1)

    @property
    def confidence(self) -> Floats:
        """Return the probability of the most probable class of each image."""
        return self.probabilities.max(axis=1)
