"""Building blocks of the patterns over a batch of cloths: bands, smooth noise, jittered cells."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Field: TypeAlias = NDArray[np.floating[Any]]
"""Numbers over a batch of images, `(images, rows, columns)`; float32 throughout, for speed."""
N_DRAWS = 48
"""Uniform numbers that every photograph may use: the first 24 for the pattern, the rest for the camera."""
GRID = 16
"""Side of the random grid of a photograph; noise repeats after this many cells."""


class Cloth(NamedTuple):
    """A batch of flat cloths before they are dyed: coordinates in pattern periods and random numbers per image."""

    x: Field
    """Across, `(images, rows, columns)`, one period per unit."""
    y: Field
    """Down, `(images, rows, columns)`."""
    soft: Field
    """Width of one pixel in periods, `(images, 1, 1)`: edges are this soft, so nothing aliases."""
    draws: Field
    """Uniform numbers, `(images, N_DRAWS)`."""
    grid: Field
    """Uniform numbers on a torus, `(images, GRID, GRID)`."""

    def between(self, position: int, low: float, high: float) -> Field:
        """Return draw number `position` of every image, spread over a range, `(images, 1, 1)`."""
        return (low + (high - low) * self.draws[:, position])[:, None, None]

    def chance(self, position: int, share: float) -> Field:
        """Return 1 for about this share of the images and 0 for the others, `(images, 1, 1)`."""
        return (self.draws[:, position] < share).astype(np.float32)[:, None, None]


def edge(distance: Field, soft: Field) -> Field:
    """Return 1 where a signed distance is positive and 0 where it is negative, with a ramp one pixel wide."""
    return np.clip(distance / soft + 0.5, 0.0, 1.0)


def fold_unit(value: Field) -> Field:
    """Return the distance to the nearest whole number, between 0 and 0.5."""
    return np.abs(value - np.rint(value))


def band(value: Field, width: Field | float, soft: Field) -> Field:
    """Return stripes around whole numbers that cover `width` of each unit."""
    return edge(width * 0.5 - fold_unit(value), soft)


def triangle(value: Field) -> Field:
    """Return a zigzag of period 1 between 0 and 1."""
    return 2.0 * fold_unit(value)


def at_nodes(cloth: Cloth, column: Field, row: Field, shift: int = 0) -> Field:
    """Return the random number that belongs to each whole position, `(images, rows, columns)`."""
    i = (row.astype(np.int32) + 5 * shift) % GRID
    j = (column.astype(np.int32) + 3 * shift) % GRID
    offset = (np.arange(len(row), dtype=np.int32) * (GRID * GRID))[:, None, None]
    return np.take(cloth.grid.reshape(-1), offset + i * GRID + j)


def noise(cloth: Cloth, x: Field, y: Field, shift: int = 0) -> Field:
    """Return smooth value noise between 0 and 1 with about one bump per unit."""
    column, row = np.floor(x), np.floor(y)
    a, b = x - column, y - row
    a = a * a * (3.0 - 2.0 * a)
    b = b * b * (3.0 - 2.0 * b)
    top = at_nodes(cloth, column, row, shift)
    top = top + a * (at_nodes(cloth, column + 1, row, shift) - top)
    low = at_nodes(cloth, column, row + 1, shift)
    low = low + a * (at_nodes(cloth, column + 1, row + 1, shift) - low)
    return top + b * (low - top)


class Cells(NamedTuple):
    """The nearest jittered cell center of every pixel."""

    dx: Field
    dy: Field
    distance: Field
    chance: Field
    """A random number of the cell."""


def jittered_cells(cloth: Cloth, jitter: float) -> Cells:
    """Return the nearest of scattered centers, one per unit cell, moved by up to `jitter` from its middle."""
    column, row = np.floor(cloth.x), np.floor(cloth.y)
    # Only the four cells around the nearest corner can hold the nearest center when jitter is moderate.
    left = column - (cloth.x - column < 0.5)
    top = row - (cloth.y - row < 0.5)
    best: list[Field] = []
    for i, j in ((top + step_y, left + step_x) for step_y in (0, 1) for step_x in (0, 1)):
        chance, other = at_nodes(cloth, j, i), at_nodes(cloth, j, i, shift=1)
        dx = cloth.x - (j + 0.5 + (chance - 0.5) * 2.0 * jitter)
        dy = cloth.y - (i + 0.5 + (other - 0.5) * 2.0 * jitter)
        found: list[Field] = [dx * dx + dy * dy, dx, dy, chance]
        nearer = found[0] < best[0] if best else True
        best = [np.where(nearer, new, old) for new, old in zip(found, best or found, strict=True)]
    return Cells(distance=np.sqrt(best[0]), dx=best[1], dy=best[2], chance=best[3])


def staggered(x: Field, y: Field) -> tuple[Field, Field, Field, Field]:
    """Return local coordinates around the nearest center of rows shifted by half, and the center's column and row."""
    row: Field = np.rint(y)
    shifted = x - 0.5 * (row % 2)
    column: Field = np.rint(shifted)
    return shifted - column, y - row, column, row
