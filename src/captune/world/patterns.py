"""The 24 patterns, in the order of their class ids: how each is dyed over a batch of cloths, and what its name is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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


def jittered_cells(cloth: Cloth, jitter: float) -> tuple[Field, Field, Field, Field]:
    """Return every pixel's place across and down from the nearest center, its distance, and a number of the center.

    Centers are scattered, one per unit cell, up to `jitter` from its middle.
    """
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
    return best[1], best[2], np.sqrt(best[0]), best[3]


def staggered(x: Field, y: Field) -> tuple[Field, Field, Field, Field]:
    """Return local coordinates around the nearest center of rows shifted by half, and the center's column and row."""
    row: Field = np.rint(y)
    shifted = x - 0.5 * (row % 2)
    column: Field = np.rint(shifted)
    return shifted - column, y - row, column, row


WELL_NAMED, MISMATCHED, CONFUSED = "well-named", "mismatched", "confused"
Dyed = tuple[list[Field], Field | None]
"""Coverage of ink 1, 2, 3 over the ground, each `(images, rows, columns)`, and brightness of the relief or None."""


@dataclass(frozen=True)
class Pattern:
    """How one class is drawn, and whether its name describes it: ground truth that no method may read."""

    dye: Callable[[Cloth], Dyed]
    period: tuple[float, float]
    """Smallest and largest repeat, in pixels."""
    kind: str = WELL_NAMED
    turn: float = 25.0
    """Largest rotation of the cloth, in degrees."""
    is_centered: bool = False
    """Whether the pattern has a single center, which stays in the picture."""
    is_tonal: bool = False
    """Whether the inks are shades of the ground instead of other colors."""


PATTERNS: dict[str, Pattern] = {}
"""Class id = position in this mapping, always."""


def descriptions_path() -> Path:
    """Return the YAML file with five descriptions of every class, as a language model would answer."""
    return Path(__file__).with_name("descriptions.yaml")


def _pattern(period: tuple[float, float], **facts: Any) -> Callable[[Callable[[Cloth], Dyed]], None]:  # noqa: ANN401
    def add(dye: Callable[[Cloth], Dyed]) -> None:
        PATTERNS[dye.__name__.replace("_", "-")] = Pattern(dye, period, **facts)

    return add


@_pattern((10, 18), kind=CONFUSED, turn=90)
def striped(cloth: Cloth) -> Dyed:
    """Broad parallel bands, at times with a third color in every second gap."""
    bands = band(cloth.x, cloth.between(0, 0.42, 0.58), cloth.soft)
    extra = band(cloth.x * 0.5 + 0.25, 0.25, cloth.soft * 0.5) * cloth.chance(1, 0.4)
    return [bands, extra], None


@_pattern((8, 12), kind=CONFUSED, turn=90)
def pinstriped(cloth: Cloth) -> Dyed:
    """Hair-thin parallel lines far apart on a plain ground."""
    return [band(cloth.x, cloth.between(0, 0.12, 0.17), cloth.soft)], None


@_pattern((9, 15), kind=CONFUSED)
def gingham(cloth: Cloth) -> Dyed:
    """Two equal families of bands in one color, darker where they cross."""
    return [0.5 * (band(cloth.x, 0.5, cloth.soft) + band(cloth.y, 0.5, cloth.soft))], None


@_pattern((22, 34), kind=CONFUSED)
def tartan(cloth: Cloth) -> Dyed:
    """Crossing bands of several widths and colors with thin bright lines."""
    inks: list[Field] = []
    for place, width in ((0.0, 0.42), (0.5, 0.20), (0.27, 0.07)):
        across = band(cloth.x + place, width, cloth.soft)
        down = band(cloth.y + place, width, cloth.soft)
        inks.append(0.5 * (across + down) if width > 0.1 else np.maximum(across, down) * 0.85)
    return inks, None


@_pattern((15, 22), turn=15)
def houndstooth(cloth: Cloth) -> Dyed:
    """Broken checks with four pointed teeth."""
    # The weave is drawn once at eight threads per period and read between threads, which keeps it smooth.
    i, j = np.indices((8, 8))
    twill = np.where((i + j) % 4 < 2, (j % 8) < 4, (i % 8) < 4).astype(np.float32)
    fine = np.repeat(np.repeat(twill, 4, axis=0), 4, axis=1)
    sheared = np.stack([np.roll(fine, s, axis=a) for s, a in ((0, 0), (1, 0), (1, 1))]).mean(axis=0)
    row, column = (np.floor(along * 32).astype(np.int32) % 32 for along in (cloth.y, cloth.x))
    return [np.take(sheared.reshape(-1).astype(np.float32), row * 32 + column)], None


@_pattern((9, 13), kind=CONFUSED)
def herringbone(cloth: Cloth) -> Dyed:
    """Columns of short slanted bars that lean left and right in turn, broken where they meet."""
    column = np.floor(cloth.x)
    within = cloth.x - column
    lean = 1.0 - 2.0 * (column % 2)
    bars = band(cloth.y * 2.6 + lean * within * 2.6 + 0.5 * (column % 2), 0.5, cloth.soft * 3.6)
    seam = edge(0.04 - np.minimum(within, 1.0 - within), cloth.soft)
    return [bars * (1.0 - 0.9 * seam)], None


@_pattern((10, 15), kind=CONFUSED)
def chevron(cloth: Cloth) -> Dyed:
    """Bold continuous zigzag bands."""
    zigzag = triangle(cloth.x * 0.55) * cloth.between(0, 0.75, 1.0)
    return [band(cloth.y + zigzag, 0.5, cloth.soft * 1.5)], None


@_pattern((18, 28), turn=15)
def argyle(cloth: Cloth) -> Dyed:
    """A lattice of tall diamonds in two colors, crossed by thin diagonal lines."""
    a, b = cloth.x + cloth.y * 0.66, cloth.x - cloth.y * 0.66
    p, q = fold_unit(a) - 0.25, fold_unit(b) - 0.25
    inside = edge(np.minimum(-p, -q), cloth.soft)
    other = edge(np.minimum(p, q), cloth.soft)
    lines = np.maximum(band(a + 0.5, 0.0, cloth.soft * 1.3), band(b + 0.5, 0.0, cloth.soft * 1.3))
    lines = np.maximum(lines, np.maximum(band(a, 0.02, cloth.soft * 1.3), band(b, 0.02, cloth.soft * 1.3)))
    return [inside, other * cloth.chance(0, 0.5), lines * 0.9], None


@_pattern((12, 20))
def polka_dotted(cloth: Cloth) -> Dyed:
    """Round dots of one size in a regular staggered grid."""
    dx, dy, _, _ = staggered(cloth.x, cloth.y * 1.6)
    distance = np.sqrt(dx * dx + dy * dy * 0.39)
    return [edge(cloth.between(0, 0.22, 0.29) - distance, cloth.soft)], None


@_pattern((19, 27))
def paisley(cloth: Cloth) -> Dyed:
    """Large curved drops with a bent tip, an outline and an inner dot, in staggered rows."""
    dx, dy, _, row = staggered(cloth.x, cloth.y)
    dx = dx * (1.0 - 2.0 * (row % 2))
    # Along the drop t runs from the round end (0) to the tip (1); the axis bends to one side.
    t = (0.40 - dy) / 0.82
    inside = np.clip(t, 0.0, 1.0)
    axis = -0.10 + 0.62 * inside**3
    half_width = 0.62 * np.sqrt(inside) * (1.0 - inside) ** 0.85
    distance = np.where((t > 0.0) & (t < 1.0), half_width - np.abs(dx - axis), -0.2)
    drop = edge(distance, cloth.soft * 1.2)
    core = edge(distance - 0.085, cloth.soft * 1.2)
    eye = edge(0.085 - np.sqrt((dx - 0.0) ** 2 + (dy - 0.14) ** 2), cloth.soft)
    return [drop, core, eye], None


@_pattern((13, 24))
def checkered(cloth: Cloth) -> Dyed:
    """A board of equal squares in two colors."""
    a = fold_unit(cloth.x) - 0.25
    b = fold_unit(cloth.y) - 0.25
    return [edge(np.minimum(np.abs(a), np.abs(b)) * np.sign(a * b), cloth.soft)], None


@_pattern((12, 18), kind=MISMATCHED)
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


@_pattern((10, 16))
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


@_pattern((12, 19), kind=MISMATCHED)
def scales(cloth: Cloth) -> Dyed:
    """Overlapping round scales in rows, each with a dark rim and a lighter base."""
    row = np.floor(cloth.y * 2.0)
    depth = np.full_like(cloth.x, 0.54)
    # From the lowest row to the highest: like tiles on a roof, an upper scale hides the one under it.
    for step in (1.0, 0.0, -1.0):
        number = row + step
        shifted = cloth.x - 0.5 * (number % 2)
        dx = shifted - np.rint(shifted)
        dy = cloth.y - number * 0.5
        distance = np.sqrt(dx * dx + dy * dy)
        depth = np.where(distance < 0.54, distance, depth)
    rim = edge(depth - 0.44, cloth.soft)
    inner = edge(0.035 - np.abs(depth - 0.26), cloth.soft) * cloth.chance(0, 0.5)
    return [rim, inner], 1.12 - 0.5 * np.clip(depth, 0.0, 0.6)


@_pattern((11, 16), turn=90)
def leopard(cloth: Cloth) -> Dyed:
    """Broken dark rings with a filled middle, scattered like a leopard's coat."""
    dx, dy, distance, chance = jittered_cells(cloth, 0.2)
    angle = np.arctan2(dy, dx) + chance * 6.28
    radius = distance * (1.0 + 0.16 * np.sin(angle * 2.0 + 1.0) + 0.10 * np.sin(angle * 3.0))
    ring = edge(0.13 - np.abs(radius - 0.32), cloth.soft)
    gaps = edge(np.sin(angle * 2.0 + chance * 9.0) + 0.86, cloth.soft * 4.0)
    middle = edge(0.27 - radius, cloth.soft) * 0.75
    return [ring * gaps, middle * (1.0 - ring * gaps)], None


@_pattern((9, 14), turn=90)
def zebra(cloth: Cloth) -> Dyed:
    """Bold wavy stripes that swell, taper and fork."""
    bend = noise(cloth, cloth.x * 0.28, cloth.y * 0.28)
    swell = noise(cloth, cloth.x * 0.5, cloth.y * 0.5, shift=1)
    wave = cloth.y + 2.6 * bend + 0.25 * np.sin(cloth.x * 1.3)
    return [edge(0.13 + 0.26 * swell - fold_unit(wave), cloth.soft * 1.2)], None


@_pattern((10, 16), turn=90)
def marbled(cloth: Cloth) -> Dyed:
    """Thin branching veins through softly clouded stone."""
    broad = noise(cloth, cloth.x * 0.6, cloth.y * 0.6)
    fine = noise(cloth, cloth.x * 1.5, cloth.y * 1.5, shift=1)
    veins = np.exp(-(((broad + 0.45 * fine - 0.72) / 0.04) ** 2))
    others = np.exp(-(((broad - 0.6 * fine - 0.18) / 0.035) ** 2)) * 0.9
    clouds = np.clip((fine - 0.3) * 0.7, 0.0, 0.35)
    return [np.maximum(clouds, np.maximum(veins, others))], None


@_pattern((11, 17), turn=20)
def camouflage(cloth: Cloth) -> Dyed:
    """Large interlocking blotches in four flat colors."""
    inks = []
    for shift, level in ((0, 0.5), (1, 0.58), (2, 0.66)):
        broad = noise(cloth, cloth.x, cloth.y * 1.4, shift)
        ragged = noise(cloth, cloth.x * 2.6, cloth.y * 2.6, shift + 3)
        inks.append(edge(broad + 0.28 * (ragged - 0.5) - level, cloth.soft * 1.5))
    return inks, None


@_pattern((5.5, 8), kind=MISMATCHED)
def woven(cloth: Cloth) -> Dyed:
    """Fine single threads that pass over and under one another, seen close."""
    column, row = np.floor(cloth.x), np.floor(cloth.y)
    over = (column + row) % 2
    a, b = cloth.x - column, cloth.y - row
    along = np.where(over > 0.5, a, b)
    thread = np.where(over > 0.5, b, a)
    relief = 0.30 + 0.85 * np.sin(np.pi * thread) * (0.45 + 0.55 * np.sin(np.pi * along))
    return [over * cloth.between(0, 0.0, 0.35)], relief


@_pattern((22, 32), kind=MISMATCHED, turn=15)
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


@_pattern((22, 30), kind=MISMATCHED, turn=15, is_tonal=True)
def damask(cloth: Cloth) -> Dyed:
    """Ornate mirrored flowers within pointed arches, tone on tone."""
    dx, dy, _, _ = staggered(cloth.x, cloth.y * 1.25)
    dy = dy * 0.8
    angle = np.arctan2(dx, -dy)
    radius = np.sqrt(dx * dx + dy * dy)
    petals = 0.20 + 0.10 * np.cos(angle * 5.0) + 0.04 * np.cos(angle)
    flower = edge(petals - radius, cloth.soft)
    heart = edge(0.07 - radius, cloth.soft) + edge(0.02 - np.abs(radius - 0.13), cloth.soft)
    arch_a = fold_unit(cloth.x + 0.5 + 0.25 * np.cos(cloth.y * 1.25 * np.pi))
    arch_b = fold_unit(cloth.x + 0.5 - 0.25 * np.cos(cloth.y * 1.25 * np.pi))
    arch = edge(0.035 - np.minimum(arch_a, arch_b), cloth.soft)
    leaves = edge(0.10 - np.sqrt((np.abs(dx) - 0.25) ** 2 * 2.0 + (dy - 0.19) ** 2), cloth.soft)
    shape = np.clip(np.maximum(np.maximum(flower - heart, arch), leaves), 0.0, 1.0)
    return [shape * cloth.between(0, 0.7, 1.0)], None


@_pattern((22, 32), kind=MISMATCHED, turn=15)
def ikat(cloth: Cloth) -> Dyed:
    """Nested diamonds whose edges run feathered along the threads."""
    thread = np.floor(cloth.x * 11.0)
    flat = thread.astype(np.int64).reshape(len(thread), -1)
    # Two random numbers of each upright thread are mixed because the grid alone would repeat after sixteen threads.
    first, second = (np.take_along_axis(cloth.grid[:, row], flat % size, 1) for row, size in ((0, 16), (1, 13)))
    streak = ((first + second) % 1.0).reshape(thread.shape)
    nested = fold_unit(cloth.x) + fold_unit(cloth.y * 0.8 + 0.22 * (streak - 0.5))
    return [edge(size - nested, cloth.soft * 2.2) for size in (0.40, 0.27, 0.13)], 0.86 + 0.22 * streak


@_pattern((44, 64), turn=90, is_centered=True)
def tie_dye(cloth: Cloth) -> Dyed:
    """Soft rings and rays of running color around one center."""
    dx = cloth.x - cloth.between(0, -0.35, 0.35)
    dy = cloth.y - cloth.between(1, -0.35, 0.35)
    radius = np.sqrt(dx * dx + dy * dy)
    angle = np.arctan2(dy, dx)
    ragged = noise(cloth, cloth.x * 5.0, cloth.y * 5.0)
    arms = np.floor(cloth.between(2, 1.0, 3.99))
    phase = radius * cloth.between(3, 2.2, 3.2) * 6.28 + arms * angle + 1.6 * ragged
    first = 0.5 + 0.5 * np.sin(phase)
    second = 0.5 + 0.5 * np.sin(phase + 2.0 + radius * 4.0)
    return [first, second * second * 0.9, np.clip(ragged * 1.6 - 1.0, 0.0, 0.5)], None


@_pattern((4.5, 7), kind=MISMATCHED, turn=90)
def speckled(cloth: Cloth) -> Dyed:
    """Tiny flecks of several colors strewn at random over a plain ground."""
    _, _, distance, chance = jittered_cells(cloth, 0.32)
    kind = (chance * 37.0) % 1.0
    fleck = edge(0.12 + 0.26 * chance - distance, cloth.soft) * ((chance * 11.0) % 1.0 < 0.7)
    return [fleck * (kind < 0.5), fleck * ((kind >= 0.5) & (kind < 0.8)), fleck * (kind >= 0.8)], None
