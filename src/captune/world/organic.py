"""Patterns of skins, plants, stone and dye; each returns its inks from the bottom up, and its relief."""

from __future__ import annotations

import numpy as np

from captune.world.fields import Cloth, Field, edge, fold_unit, jittered_cells, noise, staggered
from captune.world.geometric import Dyed


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


def leopard(cloth: Cloth) -> Dyed:
    """Broken dark rings with a filled middle, scattered like a leopard's coat."""
    cells = jittered_cells(cloth, 0.2)
    angle = np.arctan2(cells.dy, cells.dx) + cells.chance * 6.28
    radius = cells.distance * (1.0 + 0.16 * np.sin(angle * 2.0 + 1.0) + 0.10 * np.sin(angle * 3.0))
    ring = edge(0.13 - np.abs(radius - 0.32), cloth.soft)
    gaps = edge(np.sin(angle * 2.0 + cells.chance * 9.0) + 0.86, cloth.soft * 4.0)
    middle = edge(0.27 - radius, cloth.soft) * 0.75
    return [ring * gaps, middle * (1.0 - ring * gaps)], None


def zebra(cloth: Cloth) -> Dyed:
    """Bold wavy stripes that swell, taper and fork."""
    bend = noise(cloth, cloth.x * 0.28, cloth.y * 0.28)
    swell = noise(cloth, cloth.x * 0.5, cloth.y * 0.5, shift=1)
    wave = cloth.y + 2.6 * bend + 0.25 * np.sin(cloth.x * 1.3)
    return [edge(0.13 + 0.26 * swell - fold_unit(wave), cloth.soft * 1.2)], None


def marbled(cloth: Cloth) -> Dyed:
    """Thin branching veins through softly clouded stone."""
    broad = noise(cloth, cloth.x * 0.6, cloth.y * 0.6)
    fine = noise(cloth, cloth.x * 1.5, cloth.y * 1.5, shift=1)
    veins = np.exp(-(((broad + 0.45 * fine - 0.72) / 0.04) ** 2))
    others = np.exp(-(((broad - 0.6 * fine - 0.18) / 0.035) ** 2)) * 0.9
    clouds = np.clip((fine - 0.3) * 0.7, 0.0, 0.35)
    return [np.maximum(clouds, np.maximum(veins, others))], None


def camouflage(cloth: Cloth) -> Dyed:
    """Large interlocking blotches in four flat colors."""
    inks = []
    for shift, level in ((0, 0.5), (1, 0.58), (2, 0.66)):
        broad = noise(cloth, cloth.x, cloth.y * 1.4, shift)
        ragged = noise(cloth, cloth.x * 2.6, cloth.y * 2.6, shift + 3)
        inks.append(edge(broad + 0.28 * (ragged - 0.5) - level, cloth.soft * 1.5))
    return inks, None


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


def ikat(cloth: Cloth) -> Dyed:
    """Nested diamonds whose edges run feathered along the threads."""
    thread = np.floor(cloth.x * 11.0)
    streak = at_thread(cloth, thread)
    x = cloth.x
    y = cloth.y * 0.8 + 0.22 * (streak - 0.5)
    nested = fold_unit(x) + fold_unit(y)
    outer = edge(0.40 - nested, cloth.soft * 2.2)
    middle = edge(0.27 - nested, cloth.soft * 2.2)
    inner = edge(0.13 - nested, cloth.soft * 2.2)
    return [outer, middle, inner], 0.86 + 0.22 * streak


def at_thread(cloth: Cloth, thread: Field) -> Field:
    """Return the random number of each upright thread."""
    # Two numbers are mixed because the grid alone would repeat after sixteen threads.
    first = np.take_along_axis(cloth.grid[:, 0, :], (thread.astype(np.int64) % 16).reshape(len(thread), -1), 1)
    second = np.take_along_axis(cloth.grid[:, 1, :], (thread.astype(np.int64) % 13).reshape(len(thread), -1), 1)
    return ((first + second) % 1.0).reshape(thread.shape)


def speckled(cloth: Cloth) -> Dyed:
    """Tiny flecks of several colors strewn at random over a plain ground."""
    cells = jittered_cells(cloth, 0.32)
    size = 0.12 + 0.26 * cells.chance
    fleck = edge(size - cells.distance, cloth.soft)
    kind = (cells.chance * 37.0) % 1.0
    present = (cells.chance * 11.0) % 1.0 < 0.7
    fleck = fleck * present
    return [fleck * (kind < 0.5), fleck * ((kind >= 0.5) & (kind < 0.8)), fleck * (kind >= 0.8)], None
