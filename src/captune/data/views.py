"""Views of an image: the preprocessing of the model (weak view) and random augmentation (strong view)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from PIL import Image

from captune.core.arrays import Keys
from captune.core.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Resample = Literal["nearest", "bilinear", "bicubic", "lanczos"]

MOST_SIDE = 4096
"""Largest side of a model's input, in pixels."""
LONGEST_SHAPE = 32
"""Aspect ratio above which the ends of an image are cropped before resizing."""


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a model: resize, center crop, normalize; mean and std are for values from 0 to 1.

    A model of two image encoders has a `second` one, whose views stand below those of the first.
    """

    image_size: int
    resize: int
    """Length of the shorter side before the center crop; 0 squeezes the whole image into the square."""
    resample: Resample
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    second: Preprocessing | None = field(default=None, repr=False)  # keys of caches are representations

    def __post_init__(self) -> None:
        if self.resample not in get_args(Resample):
            expected = ", ".join(get_args(Resample))
            raise ModelError(f"Unknown interpolation {self.resample!r}, expected one of {expected}.")
        if not 1 <= self.image_size <= MOST_SIDE or not 0 <= self.resize <= MOST_SIDE:
            raise ModelError(f"Expected an image size of 1 to {MOST_SIDE} pixels, got {self}.")
        values = (*self.mean, *self.std)
        if len(self.mean) != 3 or len(self.std) != 3 or not all(map(math.isfinite, values)) or min(self.std) <= 0:
            raise ModelError(f"Expected three finite means and three positive standard deviations, got {self}.")

    @property
    def parts(self) -> tuple[Preprocessing, ...]:
        """Return the preprocessing of each image encoder."""
        return (self,) if self.second is None else (self, *self.second.parts)

    def followed_by(self, last: Preprocessing) -> Preprocessing:
        """Return this preprocessing with a further view below its own."""
        return replace(self, second=last if self.second is None else self.second.followed_by(last))

    @property
    def shape(self) -> tuple[int, int]:
        """Return height and width of the model's input."""
        sides = [part.image_size for part in self.parts]
        return sum(sides), max(sides)

    @property
    def filter(self) -> Image.Resampling:
        """Return Pillow's filter."""
        return Image.Resampling[self.resample.upper()]

    def stack(self, views: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Put the views `(side, side, 3)` of all encoders below each other; a narrower one is padded with zeros."""
        if self.second is None:
            return views[0]
        return np.concatenate([np.pad(view, ((0, 0), (0, self.shape[1] - len(view)), (0, 0))) for view in views])

    def split(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of both encoders, `(images, 3, side, side)` each."""
        side, other = self.image_size, self.parts[-1].image_size
        return pixels[:, :, :side, :side], pixels[:, :, side : side + other, :other]

    def normalize(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Turn views `(images, height, width, 3)` into the model's input `(images, 3, height, width)`."""
        import torch

        return torch.from_numpy(self.standardize(pixels))

    def standardize(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the same as an array, without PyTorch."""
        if self.second is not None:
            first, second = pixels[:, : self.image_size], pixels[:, self.image_size :]
            both = replace(self, second=None).standardize(first), self.second.standardize(second)
            return np.concatenate(both, axis=2)
        # Channels are moved to the front while they are bytes: with strided floats this takes ten times longer.
        batch = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32)
        batch /= np.float32(255.0)
        batch -= np.asarray(self.mean, dtype=np.float32).reshape(1, 3, 1, 1)
        batch /= np.asarray(self.std, dtype=np.float32).reshape(1, 3, 1, 1)
        return batch


def weak_view(image: Image.Image, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Resize and crop an RGB image as the model expects, before normalization, `(height, width, 3)`."""
    return preprocessing.stack([_resize_and_crop(image, one) for one in preprocessing.parts])


def _resize_and_crop(image: Image.Image, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    side, resample = preprocessing.image_size, preprocessing.filter
    if preprocessing.resize == 0:
        return np.asarray(image.resize((side, side), resample))
    (width, height), most = image.size, LONGEST_SHAPE * min(image.size)
    if max(width, height) > most:  # the crop below drops the ends anyway, and resizing them could exhaust memory
        left, top = max(width - most, 0) // 2, max(height - most, 0) // 2
        image = image.crop((left, top, width - left, height - top))
        width, height = image.size
    # The longer side is truncated, not rounded, as in the reference preprocessing of CLIP.
    wide = preprocessing.resize if width <= height else int(preprocessing.resize * width / height)
    high = preprocessing.resize if height <= width else int(preprocessing.resize * height / width)
    resized = image.resize((wide, high), resample)
    left, top = (wide - side) // 2, (high - side) // 2
    return np.asarray(resized.crop((left, top, left + side, top + side)))


@dataclass(frozen=True)
class WeakView:
    """The weak view as a callable for worker processes."""

    preprocessing: Preprocessing

    def __call__(self, image: Image.Image, position: int, key: Keys) -> NDArray[np.uint8]:
        """Return the weak view, which depends on the image alone."""
        return weak_view(image, self.preprocessing)


def strong_view(
    image: Image.Image, preprocessing: Preprocessing, generator: np.random.Generator, smallest_area: float = 0.08
) -> NDArray[np.uint8]:
    """Return a random resized crop (aspect ratio 3/4 to 4/3) with a random flip, `(height, width, 3)`."""
    box, flips = _random_box(image.size, generator, smallest_area), generator.random() < 0.5
    views = []
    for one in preprocessing.parts:
        view = np.asarray(image.resize((one.image_size, one.image_size), one.filter, box=box))
        views.append(np.ascontiguousarray(view[:, ::-1]) if flips else view)
    return preprocessing.stack(views)


@dataclass(frozen=True)
class StrongView:
    """One numbered strong view per image, as a callable for worker processes.

    It depends on the content of the image and on its number only, so that every run can use the cached embedding.
    """

    preprocessing: Preprocessing
    number: int
    smallest_area: float = field(default=0.08, repr=False)  # only views of the default are cached

    def __call__(self, image: Image.Image, position: int, key: Keys) -> NDArray[np.uint8]:
        """Return the random view of an image with this content."""
        generator = np.random.default_rng([self.number, *key.tolist()])
        return strong_view(image, self.preprocessing, generator, self.smallest_area)


def view_generator(seed: int, epoch: int, position: int) -> np.random.Generator:
    """Return the random generator of one image in one epoch, the same in every worker process."""
    return np.random.default_rng([seed, epoch, position])


def _random_box(
    size: tuple[int, int], generator: np.random.Generator, smallest_area: float
) -> tuple[float, float, float, float]:
    width, height = size
    low, high = math.log(3 / 4), math.log(4 / 3)
    for _ in range(10):
        area = width * height * generator.uniform(smallest_area, 1.0)
        shape = math.exp(generator.uniform(low, high))
        wide, tall = math.sqrt(area * shape), math.sqrt(area / shape)
        if 1 <= wide <= width and 1 <= tall <= height:
            left, top = generator.uniform(0, width - wide), generator.uniform(0, height - tall)
            return left, top, left + wide, top + tall
    shape = min(max(width / height, 3 / 4), 4 / 3)
    wide, tall = min(width, height * shape), min(height, width / shape)
    left, top = (width - wide) / 2, (height - tall) / 2
    return left, top, left + wide, top + tall
