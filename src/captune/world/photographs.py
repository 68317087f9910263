"""The camera: how a patterned cloth is dyed, lies, folds, is lit, and lands on 64 x 64 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Ints
from captune.core.errors import InputError, UnknownNameError, nearest
from captune.world.patterns import GRID, N_DRAWS, PATTERNS, Cloth, Field, Pattern

SIZE = 64
"""Side of every photograph in pixels."""
SPLITS = ("train", "test")
_TEST_START = 1_000_000_000  # train and test photographs never share an index
_BATCH = 16  # small enough that a batch stays in the processor's cache
_FIRST_CAMERA_DRAW = 8
_AXIS = (np.arange(SIZE, dtype=np.float32) + 0.5) / SIZE - 0.5
_RIGHT, _DOWN = _AXIS[None, None, :], _AXIS[None, :, None]
DYES: dict[str, tuple[int, int, int]] = {
    "white": (240, 238, 232),
    "cream": (236, 222, 186),
    "grey": (138, 138, 140),
    "black": (28, 27, 30),
    "red": (190, 38, 44),
    "maroon": (98, 26, 36),
    "orange": (228, 124, 38),
    "yellow": (236, 204, 70),
    "brown": (112, 72, 42),
    "tan": (200, 164, 116),
    "green": (58, 134, 66),
    "olive": (112, 112, 52),
    "teal": (30, 128, 130),
    "sky blue": (132, 190, 228),
    "blue": (42, 84, 176),
    "navy": (28, 36, 84),
    "purple": (108, 54, 138),
    "pink": (234, 152, 178),
}
_COLORS = np.array(list(DYES.values()), dtype=np.float32) / 255.0
_BRIGHTNESS = _COLORS @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
_PAIRS = np.argwhere(np.abs(_BRIGHTNESS[:, None] - _BRIGHTNESS[None, :]) > 0.28).astype(np.int64)


def _draw(seed: int, class_id: int, indices: Ints) -> tuple[Field, Field, Field]:
    """Return the random numbers of photographs, those of their grids, and sensor noise.

    Those of each photograph depend on its own (seed, class, index) only.
    """
    shapes = (N_DRAWS,), (GRID, GRID), (SIZE, SIZE, 3)
    draws, grids, grain = (np.empty((len(indices), *shape), dtype=np.float32) for shape in shapes)
    for position, index in enumerate(indices.tolist()):
        generator = np.random.Generator(np.random.SFC64([seed, class_id, index]))
        generator.random(dtype=np.float32, out=draws[position])
        generator.random(dtype=np.float32, out=grids[position])
        generator.standard_normal(dtype=np.float32, out=grain[position])
    return draws, grids, grain


def _between(draws: Field, position: int, low: float, high: float) -> Field:
    """Return a number of the camera for every image, spread over a range, `(images, 1, 1)`."""
    return (low + (high - low) * draws[:, _FIRST_CAMERA_DRAW + position])[:, None, None].astype(np.float32)


def _lay(pattern: Pattern, draws: Field, grids: Field) -> tuple[Cloth, Field]:
    """Return the cloth as the camera sees it, and the light on its folds, `(images, SIZE, SIZE)`."""
    between = partial(_between, draws)
    # Perspective: the far side of a tilted cloth is smaller.
    depth = 1.0 + between(0, -0.35, 0.35) * _RIGHT + between(1, -0.35, 0.35) * _DOWN
    x, y = _RIGHT / depth, _DOWN / depth
    # One soft fold wave across the cloth displaces it and catches the light on one side.
    way = between(2, 0.0, 2 * np.pi)
    wave = between(3, 3.0, 9.0) * (np.cos(way) * x + np.sin(way) * y) + between(4, 0.0, 6.28)
    strength = between(5, 0.0, 1.0) ** 2
    shift = 0.03 * strength * np.sin(wave)
    folds = 1.0 + 0.32 * strength * np.cos(wave)
    x, y = x + shift * np.sin(way), y - shift * np.cos(way)
    limit = np.deg2rad(pattern.turn)
    turn = between(6, -limit, limit)
    cosine, sine = np.cos(turn), np.sin(turn)
    period = between(7, *pattern.period) / SIZE
    cut = 0.0 if pattern.is_centered else 1.0  # where the piece was cut from the bolt
    cloth = Cloth(
        x=(cosine * x - sine * y) / period + cut * between(8, 0.0, 16.0),
        y=(sine * x + cosine * y) / period + cut * between(9, 0.0, 16.0),
        soft=(1.0 / SIZE) / period,
        draws=draws,
        grid=grids,
    )
    return cloth, folds


def _blur(image: Field, strength: Field) -> Field:
    """Mix every pixel with its neighbors, `strength` 0 to 1 per image."""
    for axis in (1, 2):
        padded = np.pad(image, [(int(a == axis),) * 2 for a in range(4)], mode="edge")
        before, after = np.split(padded, [-2], axis)[0], np.split(padded, [2], axis)[1]
        image = image + strength * (0.25 * (before + after) - 0.5 * image)
    return image


def _dye(pattern: Pattern, cloth: Cloth, colors: Field) -> Field:
    """Return the dyed cloth under even light, `(images, SIZE, SIZE, 3)`."""
    inks, relief = pattern.dye(cloth)
    if relief is not None:
        colors = 0.15 + 0.85 * colors  # shadows on a black cloth would not be seen
    image = np.broadcast_to(colors[:, 0, None, None, :], (*cloth.x.shape, 3)).astype(np.float32)
    for number, ink in enumerate(inks, start=1):
        cover = ink[..., None]
        image = image + cover * (colors[:, number, None, None, :] - image)
    return image if relief is None else image * relief[..., None]


def _photograph(pattern: Pattern, draws: Field, grids: Field, grain: Field) -> tuple[Field, Ints]:
    """Return photographs `(images, SIZE, SIZE, 3)` between 0 and 1 and their dyes `(images, 4)`."""
    first, between = _FIRST_CAMERA_DRAW + 20, partial(_between, draws)
    dyes = _choose_dyes(draws[:, first : first + 3])
    wobble = (draws[:, first + 4 : first + 8, None] - 0.5) * 0.10  # each vat is a little different
    colors = np.clip(_COLORS[dyes] + wobble, 0.0, 1.0).astype(np.float32)
    if pattern.is_tonal:
        dyes = np.repeat(dyes[:, :1], 4, axis=1)
        brighter = np.where(colors[:, :1].mean(axis=2, keepdims=True) > 0.5, -0.28, 0.30)
        colors = np.clip(colors[:, :1] + brighter * np.array([0.0, 1.0, 1.0, 1.0], np.float32)[None, :, None], 0, 1)
        colors = colors.astype(np.float32)
    cloth, folds = _lay(pattern, draws, grids)
    image = _dye(pattern, cloth, colors)
    lamp = 1.0 + between(11, -0.45, 0.45) * _RIGHT + between(12, -0.45, 0.45) * _DOWN
    light = (between(13, 0.72, 1.12) * folds * lamp)[..., None]
    tint = 1.0 + (draws[:, None, None, _FIRST_CAMERA_DRAW + 14 : _FIRST_CAMERA_DRAW + 17] - 0.5) * 0.16
    haze = between(17, 0.0, 0.18)[..., None]
    image = _blur(image * light * tint, between(18, 0.0, 0.75)[..., None])
    image = image + haze * (0.55 - image) + between(19, 0.008, 0.05)[..., None] * grain
    return np.clip(image, 0.0, 1.0), dyes


def _choose_dyes(draws: Field) -> Ints:
    """Return four dyes per image, `(images, 4)`: a ground, a contrasting first ink, and two more."""
    pair = _PAIRS[(draws[:, 0] * len(_PAIRS)).astype(np.int64)]
    second, third = ((draws[:, column] * len(DYES)).astype(np.int64) for column in (1, 2))
    # A second ink that equals the ground or the first ink would vanish: take the next dye that differs.
    for _ in range(2):
        second = np.where((second == pair[:, 0]) | (second == pair[:, 1]), (second + 5) % len(DYES), second)
    return np.stack([pair[:, 0], pair[:, 1], second, third], axis=1)


class Photographs(NamedTuple):
    """A batch of photographs with their class ids and colors."""

    images: NDArray[np.uint8]
    """`(images, SIZE, SIZE, 3)`."""
    labels: Ints
    """Class ids, positions in `class_names()`."""
    dyes: Ints
    """Four dye ids per image: ground, first, second and third ink."""


def class_names() -> tuple[str, ...]:
    """Return the names of the classes; a class id is a position in it."""
    return tuple(PATTERNS)


def render(name: str, indices: Sequence[int] | Ints, seed: int) -> Photographs:
    """Return these photographs of one class; each is determined by (seed, class, index) alone."""
    if name not in PATTERNS:
        raise UnknownNameError(f"No class {name!r} in the embedded world.{nearest(name, PATTERNS)}")
    class_id = list(PATTERNS).index(name)
    wanted = np.asarray(indices, dtype=np.int64)
    images = np.empty((len(wanted), SIZE, SIZE, 3), dtype=np.uint8)
    dyes = np.empty((len(wanted), 4), dtype=np.int64)
    for start in range(0, len(wanted), _BATCH):
        rows = slice(start, start + _BATCH)
        light, dyes[rows] = _photograph(PATTERNS[name], *_draw(seed, class_id, wanted[rows]))
        images[rows] = np.rint(light * 255.0)
    return Photographs(images, np.full(len(wanted), class_id, dtype=np.int64), dyes)


def render_world(images_per_class: int, seed: int, split: str = "train") -> Photographs:
    """Return `images_per_class` photographs of every class, ordered by class."""
    if split not in SPLITS:
        raise UnknownNameError(f"No split {split!r} in the embedded world; there are {SPLITS}.{nearest(split, SPLITS)}")
    if images_per_class < 1:
        raise InputError(f"images_per_class must be at least 1, not {images_per_class}.")
    indices = np.arange(images_per_class) + (_TEST_START if split == "test" else 0)
    parts = [render(name, indices, seed) for name in PATTERNS]
    return Photographs(*map(np.concatenate, zip(*parts, strict=True)))


def write_world(folder: Path, images_per_class: int, seed: int, split: str = "train") -> list[Path]:
    """Write PNG photographs into one sub-folder per class and return their paths, ordered by class."""
    from PIL import Image

    paths = []
    for position, pixels in enumerate(render_world(images_per_class, seed, split).images):
        class_id, number = divmod(position, images_per_class)
        paths.append(folder / class_names()[class_id] / f"{number:05d}.png")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(paths[-1], compress_level=1)
    return paths
