"""Patterns made of lines, squares, diamonds and dots; each returns its inks from the bottom up, and its relief."""

from __future__ import annotations

import numpy as np

from captune.world.fields import Cloth, Field, band, edge, fold_unit, staggered, triangle

Dyed = tuple[list[Field], Field | None]
"""Coverage of ink 1, 2, 3 over the ground, each `(images, rows, columns)`, and brightness of the relief or None."""


def striped(cloth: Cloth) -> Dyed:
    """Broad parallel bands, at times with a third color in every second gap."""
    bands = band(cloth.x, cloth.between(0, 0.42, 0.58), cloth.soft)
    extra = band(cloth.x * 0.5 + 0.25, 0.25, cloth.soft * 0.5) * cloth.chance(1, 0.4)
    return [bands, extra], None


def pinstriped(cloth: Cloth) -> Dyed:
    """Hair-thin parallel lines far apart on a plain ground."""
    return [band(cloth.x, cloth.between(0, 0.12, 0.17), cloth.soft)], None


def gingham(cloth: Cloth) -> Dyed:
    """Two equal families of bands in one color, darker where they cross."""
    both: Field = band(cloth.x, 0.5, cloth.soft) + band(cloth.y, 0.5, cloth.soft)
    return [0.5 * both], None


def tartan(cloth: Cloth) -> Dyed:
    """Crossing bands of several widths and colors with thin bright lines."""
    inks: list[Field] = []
    for place, width in ((0.0, 0.42), (0.5, 0.20), (0.27, 0.07)):
        across = band(cloth.x + place, width, cloth.soft)
        down = band(cloth.y + place, width, cloth.soft)
        inks.append(0.5 * (across + down) if width > 0.1 else np.maximum(across, down) * 0.85)
    return inks, None


def checkered(cloth: Cloth) -> Dyed:
    """A board of equal squares in two colors."""
    a = fold_unit(cloth.x) - 0.25
    b = fold_unit(cloth.y) - 0.25
    return [edge(np.minimum(np.abs(a), np.abs(b)) * np.sign(a * b), cloth.soft)], None


def chevron(cloth: Cloth) -> Dyed:
    """Bold continuous zigzag bands."""
    zigzag = triangle(cloth.x * 0.55) * cloth.between(0, 0.75, 1.0)
    return [band(cloth.y + zigzag, 0.5, cloth.soft * 1.5)], None


def herringbone(cloth: Cloth) -> Dyed:
    """Columns of short slanted bars that lean left and right in turn, broken where they meet."""
    column = np.floor(cloth.x)
    within = cloth.x - column
    lean = 1.0 - 2.0 * (column % 2)
    bars = band(cloth.y * 2.6 + lean * within * 2.6 + 0.5 * (column % 2), 0.5, cloth.soft * 3.6)
    seam = edge(0.04 - np.minimum(within, 1.0 - within), cloth.soft)
    return [bars * (1.0 - 0.9 * seam)], None


_TWILL = np.fromfunction(
    lambda i, j: np.where((i + j) % 4 < 2, (j % 8) < 4, (i % 8) < 4), (8, 8), dtype=np.int64
).astype(np.float32)


def houndstooth(cloth: Cloth) -> Dyed:
    """Broken checks with four pointed teeth."""
    # The weave is drawn once at eight threads per period and read between threads, which keeps it smooth.
    total = np.zeros_like(cloth.x)
    fine = np.repeat(np.repeat(_TWILL, 4, axis=0), 4, axis=1)
    sheared = np.stack([np.roll(fine, s, axis=a) for s, a in ((0, 0), (1, 0), (1, 1))]).mean(axis=0)
    i = np.floor(cloth.y * 32).astype(np.int32) % 32
    j = np.floor(cloth.x * 32).astype(np.int32) % 32
    total += np.take(sheared.reshape(-1).astype(np.float32), i * 32 + j)
    return [total], None


def argyle(cloth: Cloth) -> Dyed:
    """A lattice of tall diamonds in two colors, crossed by thin diagonal lines."""
    a, b = cloth.x + cloth.y * 0.66, cloth.x - cloth.y * 0.66
    p, q = fold_unit(a) - 0.25, fold_unit(b) - 0.25
    inside = edge(np.minimum(-p, -q), cloth.soft)
    other = edge(np.minimum(p, q), cloth.soft)
    lines = np.maximum(band(a + 0.5, 0.0, cloth.soft * 1.3), band(b + 0.5, 0.0, cloth.soft * 1.3))
    lines = np.maximum(lines, np.maximum(band(a, 0.02, cloth.soft * 1.3), band(b, 0.02, cloth.soft * 1.3)))
    return [inside, other * cloth.chance(0, 0.5), lines * 0.9], None


def polka_dotted(cloth: Cloth) -> Dyed:
    """Round dots of one size in a regular staggered grid."""
    dx, dy, _, _ = staggered(cloth.x, cloth.y * 1.6)
    distance = np.sqrt(dx * dx + dy * dy * 0.39)
    return [edge(cloth.between(0, 0.22, 0.29) - distance, cloth.soft)], None


def honeycomb(cloth: Cloth) -> Dyed:
    """Six-sided cells that share thin walls."""
    # The two nearest centers of a hexagonal lattice: the wall is where they are equally far.
    y = cloth.y / 0.866
    row = np.floor(y)
    distances = []
    for step in (0, 1):
        center_y = row + step
        shifted = cloth.x - 0.5 * (center_y % 2)
        dx = np.abs(shifted - np.rint(shifted))
        dy = (y - center_y) * 0.866
        distances += [dx * dx + dy * dy, (1.0 - dx) ** 2 + dy * dy]
    first = np.minimum(distances[0], distances[2])
    second = np.minimum(np.maximum(distances[0], distances[2]), np.minimum(distances[1], distances[3]))
    wall = edge(cloth.between(0, 0.10, 0.16) - (second - first), cloth.soft * 1.4)
    return [wall], 1.0 - 0.25 * first


def basketweave(cloth: Cloth) -> Dyed:
    """Square blocks of three parallel strips, lying and standing in turn."""
    column, row = np.floor(cloth.x), np.floor(cloth.y)
    lying = (column + row) % 2
    along = np.where(lying > 0.5, cloth.x - column, cloth.y - row)
    over = np.where(lying > 0.5, cloth.y - row, cloth.x - column)
    gap = band(over * 3.0, 0.12, cloth.soft * 3.0)
    ends = edge(0.03 - np.minimum(along, 1.0 - along), cloth.soft)
    relief = (0.62 + 0.45 * np.sin(np.pi * along)) * (1.0 - 0.65 * np.maximum(gap, ends))
    return [lying * cloth.between(0, 0.25, 0.9)], relief


def woven(cloth: Cloth) -> Dyed:
    """Fine single threads that pass over and under one another, seen close."""
    column, row = np.floor(cloth.x), np.floor(cloth.y)
    over = (column + row) % 2
    a, b = cloth.x - column, cloth.y - row
    along = np.where(over > 0.5, a, b)
    thread = np.where(over > 0.5, b, a)
    relief = 0.30 + 0.85 * np.sin(np.pi * thread) * (0.45 + 0.55 * np.sin(np.pi * along))
    return [over * cloth.between(0, 0.0, 0.35)], relief


def quilted(cloth: Cloth) -> Dyed:
    """Puffed diamonds between dashed seams on a cloth of one color."""
    a, b = cloth.x + cloth.y, cloth.x - cloth.y
    p, q = fold_unit(a), fold_unit(b)
    puff = np.sqrt(np.minimum(p, q) * 2.0)
    light = 0.5 * np.sin(2 * np.pi * (a - np.floor(a) - 0.5)) * 0.35
    dashes = np.maximum(
        band(a, 0.05, cloth.soft * 1.4) * edge(np.sin(b * 38.0) + 0.3, cloth.soft * 25),
        band(b, 0.05, cloth.soft * 1.4) * edge(np.sin(a * 38.0) + 0.3, cloth.soft * 25),
    )
    return [dashes * cloth.chance(0, 0.5) * 0.7], 0.40 + 0.70 * puff + light
