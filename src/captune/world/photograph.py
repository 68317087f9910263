"""The camera: how a patterned cloth lies, folds, is lit, and lands on 64 x 64 pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from captune.core.arrays import Ints
from captune.world.fields import GRID, N_DRAWS, Cloth, Field
from captune.world.palette import choose_dyes, dye_colors
from captune.world.patterns import Pattern

SIZE = 64
"""Side of every photograph in pixels."""

_FIRST_CAMERA_DRAW = 8
_AXIS = (np.arange(SIZE, dtype=np.float32) + 0.5) / SIZE - 0.5


@dataclass(frozen=True)
class Chance:
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
