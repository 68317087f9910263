"""The camera: how a patterned cloth is dyed, lies, folds, is lit, and lands on 64 x 64 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Ints
from captune.core.errors import InputError, UnknownNameError, nearest
from captune.world.fields import GRID, N_DRAWS, Cloth, Field
from captune.world.patterns import PATTERNS, Pattern

SIZE = 64
"""Side of every photograph in pixels."""
SPLITS = ("train", "test")
_TEST_START = 1_000_000_000  # train and test photographs never share an index
_BATCH = 16  # small enough that a batch stays in the processor's cache
_FIRST_CAMERA_DRAW = 8
_AXIS = (np.arange(SIZE, dtype=np.float32) + 0.5) / SIZE - 0.5
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
_CONTRAST = np.abs(_BRIGHTNESS[:, None] - _BRIGHTNESS[None, :])
_PAIRS = np.argwhere(_CONTRAST > 0.28).astype(np.int64)


class Chance(NamedTuple):
    """The random numbers of a batch of photographs, drawn per image from (seed, class, index)."""

    draws: Field
    grid: Field
    grain: Field
    """Sensor noise, `(images, SIZE, SIZE, 3)`."""


def draw_chance(seed: int, class_id: int, indices: Ints) -> Chance:
    """Draw the random numbers of these photographs; each depends on its own (seed, class, index) only."""
    draws = np.empty((len(indices), N_DRAWS), dtype=np.float32)
    grid = np.empty((len(indices), GRID, GRID), dtype=np.float32)
    grain = np.empty((len(indices), SIZE, SIZE, 3), dtype=np.float32)
    for position, index in enumerate(indices.tolist()):
        generator = np.random.Generator(np.random.SFC64([seed, class_id, index]))
        generator.random(dtype=np.float32, out=draws[position])
        generator.random(dtype=np.float32, out=grid[position])
        generator.standard_normal(dtype=np.float32, out=grain[position])
    return Chance(draws, grid, grain)


def _span(chance: Chance, position: int, low: float, high: float) -> Field:
    values = chance.draws[:, _FIRST_CAMERA_DRAW + position]
    return (low + (high - low) * values)[:, None, None].astype(np.float32)


def _lay(pattern: Pattern, chance: Chance) -> tuple[Cloth, Field]:
    """Return the cloth as the camera sees it, and the light on its folds, `(images, SIZE, SIZE)`."""
    right, down = _AXIS[None, None, :], _AXIS[None, :, None]
    # Perspective: the far side of a tilted cloth is smaller.
    depth = 1.0 + _span(chance, 0, -0.35, 0.35) * right + _span(chance, 1, -0.35, 0.35) * down
    x, y = right / depth, down / depth
    # One soft fold wave across the cloth displaces it and catches the light on one side.
    way = _span(chance, 2, 0.0, 2 * np.pi)
    wave = _span(chance, 3, 3.0, 9.0) * (np.cos(way) * x + np.sin(way) * y) + _span(chance, 4, 0.0, 6.28)
    strength = _span(chance, 5, 0.0, 1.0) ** 2
    shift = 0.03 * strength * np.sin(wave)
    folds = 1.0 + 0.32 * strength * np.cos(wave)
    x, y = x + shift * np.sin(way), y - shift * np.cos(way)
    limit = np.deg2rad(pattern.turn)
    turn = _span(chance, 6, -limit, limit)
    cosine, sine = np.cos(turn), np.sin(turn)
    period = _span(chance, 7, *pattern.period) / SIZE
    cut = 0.0 if pattern.is_centered else 1.0  # where the piece was cut from the bolt
    cloth = Cloth(
        x=(cosine * x - sine * y) / period + cut * _span(chance, 8, 0.0, 16.0),
        y=(sine * x + cosine * y) / period + cut * _span(chance, 9, 0.0, 16.0),
        soft=(1.0 / SIZE) / period,
        draws=chance.draws,
        grid=chance.grid,
    )
    return cloth, folds


def _blur(image: Field, strength: Field) -> Field:
    """Mix every pixel with its neighbors, `strength` 0 to 1 per image."""
    padded = np.pad(image, ((0, 0), (1, 1), (0, 0), (0, 0)), mode="edge")
    mixed = image + strength * (0.25 * (padded[:, :-2] + padded[:, 2:]) - 0.5 * image)
    padded = np.pad(mixed, ((0, 0), (0, 0), (1, 1), (0, 0)), mode="edge")
    return mixed + strength * (0.25 * (padded[:, :, :-2] + padded[:, :, 2:]) - 0.5 * mixed)


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


def photograph(pattern: Pattern, chance: Chance) -> tuple[Field, Ints]:
    """Return photographs `(images, SIZE, SIZE, 3)` between 0 and 1 and their dyes `(images, 4)`."""
    first = _FIRST_CAMERA_DRAW + 20
    dyes = choose_dyes(chance.draws[:, first : first + 3])
    colors = dye_colors(dyes, chance.draws[:, first + 4 : first + 8])
    if pattern.is_tonal:
        dyes = np.repeat(dyes[:, :1], 4, axis=1)
        brighter = np.where(colors[:, :1].mean(axis=2, keepdims=True) > 0.5, -0.28, 0.30)
        colors = np.clip(colors[:, :1] + brighter * np.array([0.0, 1.0, 1.0, 1.0], np.float32)[None, :, None], 0, 1)
        colors = colors.astype(np.float32)
    cloth, folds = _lay(pattern, chance)
    image = _dye(pattern, cloth, colors)
    right, down = _AXIS[None, None, :], _AXIS[None, :, None]
    lamp = 1.0 + _span(chance, 11, -0.45, 0.45) * right + _span(chance, 12, -0.45, 0.45) * down
    light = (_span(chance, 13, 0.72, 1.12) * folds * lamp)[..., None]
    tint = 1.0 + (chance.draws[:, None, None, _FIRST_CAMERA_DRAW + 14 : _FIRST_CAMERA_DRAW + 17] - 0.5) * 0.16
    haze = _span(chance, 17, 0.0, 0.18)[..., None]
    image = _blur(image * light * tint, _span(chance, 18, 0.0, 0.75)[..., None])
    image = image + haze * (0.55 - image) + _span(chance, 19, 0.008, 0.05)[..., None] * chance.grain
    return np.clip(image, 0.0, 1.0), dyes


def choose_dyes(draws: Field) -> Ints:
    """Return four dyes per image, `(images, 4)`: a ground, a contrasting first ink, and two more."""
    pair = _PAIRS[(draws[:, 0] * len(_PAIRS)).astype(np.int64)]
    second = (draws[:, 1] * len(DYES)).astype(np.int64)
    third = (draws[:, 2] * len(DYES)).astype(np.int64)
    # A second ink that equals the ground or the first ink would vanish: take the next dye that differs.
    for _ in range(2):
        second = np.where((second == pair[:, 0]) | (second == pair[:, 1]), (second + 5) % len(DYES), second)
    return np.stack([pair[:, 0], pair[:, 1], second, third], axis=1)


def dye_colors(dyes: Ints, draws: Field) -> Field:
    """Return the colors of the chosen dyes, `(images, 4, 3)`, each vat a little different."""
    wobble = (draws.reshape(len(dyes), -1, 1) - 0.5) * 0.10
    return np.clip(_COLORS[dyes] + wobble, 0.0, 1.0).astype(np.float32)


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
        light, dyes[rows] = photograph(PATTERNS[name], draw_chance(seed, class_id, wanted[rows]))
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
