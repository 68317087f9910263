"""Photographs of the embedded world as arrays or as a folder of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Ints
from captune.core.errors import InputError, UnknownNameError, nearest
from captune.world.patterns import PATTERNS
from captune.world.photograph import draw_chance, photograph

Pixels = NDArray[np.uint8]

SPLITS = ("train", "test")
"""Train and test photographs never share an index: test indices start far above any train index."""

_TEST_START = 1_000_000_000
_BATCH = 16  # small enough that a batch stays in the processor's cache


@dataclass(frozen=True)
class Photographs:
    """A batch of photographs with their class ids and colors."""

    images: Pixels
    """`(images, 64, 64, 3)`."""
    labels: Ints
    """Class ids, positions in `class_names()`."""
    dyes: Ints
    """Four dye ids per image: ground, first, second and third ink."""


def class_names() -> tuple[str, ...]:
    """Return the names of the classes; a class id is a position in it."""
    return tuple(PATTERNS)


def first_index(split: str) -> int:
    """Return the index of the first photograph of a split."""
    if split not in SPLITS:
        raise UnknownNameError(f"No split {split!r} in the embedded world; there are {SPLITS}.{nearest(split, SPLITS)}")
    return _TEST_START if split == "test" else 0


def render(name: str, indices: Sequence[int] | Ints, seed: int) -> Photographs:
    """Return these photographs of one class; each is determined by (seed, class, index) alone."""
    if name not in PATTERNS:
        raise UnknownNameError(f"No class {name!r} in the embedded world.{nearest(name, PATTERNS)}")
    class_id = list(PATTERNS).index(name)
    wanted = np.asarray(indices, dtype=np.int64)
    images = np.empty((len(wanted), 64, 64, 3), dtype=np.uint8)
    dyes = np.empty((len(wanted), 4), dtype=np.int64)
    for start in range(0, len(wanted), _BATCH):
        rows = slice(start, start + _BATCH)
        light, dyes[rows] = photograph(PATTERNS[name], draw_chance(seed, class_id, wanted[rows]))
        images[rows] = np.rint(light * 255.0)
    return Photographs(images, np.full(len(wanted), class_id, dtype=np.int64), dyes)


def render_world(images_per_class: int, seed: int, split: str = "train") -> Photographs:
    """Return `images_per_class` photographs of every class, ordered by class."""
    start = first_index(split)
    parts = [render(name, np.arange(start, start + images_per_class), seed) for name in PATTERNS]
    return Photographs(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.dyes for part in parts]),
    )


def write_world(folder: Path, images_per_class: int, seed: int, split: str = "train") -> list[Path]:
    """Write PNG photographs into one sub-folder per class and return their paths, ordered by class."""
    if images_per_class < 1:
        raise InputError(f"images_per_class must be at least 1, not {images_per_class}.")
    return list(_write(folder, images_per_class, seed, split))


def _write(folder: Path, images_per_class: int, seed: int, split: str) -> Iterator[Path]:
    from PIL import Image

    start = first_index(split)
    for name in PATTERNS:
        (folder / name).mkdir(parents=True, exist_ok=True)
        batch = render(name, np.arange(start, start + images_per_class), seed)
        for number, pixels in enumerate(batch.images):
            path = folder / name / f"{number:05d}.png"
            Image.fromarray(pixels).save(path, compress_level=1)
            yield path
