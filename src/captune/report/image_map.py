"""The map of a run's images: images that look similar to the model are near each other, some as pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from captune.core.arrays import evenly_spaced
from captune.embeddings.projection import project
from captune.report.drawing import SERIES
from captune.report.measures import Measures
from captune.report.pictures import Picture, pictures_of

MOST_POINTS = 1200
FEWEST_POINTS = 12
COLUMNS, ROWS = 11, 7
COLORS = (*SERIES, "#8a5a00", "#6a51c8", "#b8346b", "#5f8a00", "#00868b", "#7c6f64")
"""Twelve colors that differ on light and on dark backgrounds; further classes get another shape."""
SHAPES = {
    "circle": "M-.42 0a.42 .42 0 1 0 .84 0a.42 .42 0 1 0 -.84 0",
    "square": "M-.38 -.38h.76v.76h-.76z",
    "triangle": "M0 -.5L.48 .38H-.48z",
    "diamond": "M0 -.54L.54 0L0 .54L-.54 0z",
    "cross": "M-.16 -.5h.32v.34h.34v.32h-.34v.34h-.32v-.34h-.34v-.32h.34z",
    "wedge": "M0 .5L.48 -.38H-.48z",
}
"""SVG paths around the origin, in percent of the width of the map."""
MOST_CHOICES = 300


@dataclass(frozen=True)
class Point:
    """An image on the map, in percent from the left and the top, with its classes."""

    x: float
    y: float
    before: int
    after: int


@dataclass(frozen=True)
class Mark:
    """How the images of a class are drawn."""

    id: int
    name: str
    color: str
    shape: str
    n_images: int


@dataclass(frozen=True)
class ImageMap:
    """A map with points, some pictures, and a mark for each class, the largest first."""

    points: list[Point]
    pictures: list[tuple[float, float, Picture, str]]
    marks: dict[int, Mark]
    is_adapted: bool
    n_images: int

    @property
    def shapes(self) -> dict[str, str]:
        """Return the SVG paths of the shapes, by name."""
        return SHAPES

    @property
    def legend(self) -> list[Mark]:
        """Return the marks of the largest classes."""
        return list(self.marks.values())[:MOST_CHOICES]


def image_map(measures: Measures) -> ImageMap | None:
    """Return the map of an evenly spaced sample of the images, None without saved embeddings."""
    run = measures.run
    if len(measures.embedded_rows) < FEWEST_POINTS:
        return None
    sample = evenly_spaced(len(measures.embedded_rows), MOST_POINTS)
    rows = measures.embedded_rows[sample]
    places = project(measures.vectors[sample]).astype(np.float64)
    # Half of the order and half of the place: tight islands become wide enough to see their points.
    ranks = places.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable") / (len(places) - 1)
    places = 4 + 92 * (0.5 * places + 0.5 * ranks)
    before, after = run.before_labels[rows], run.labels[rows]
    counts = np.bincount(after, minlength=run.n_classes)
    present = np.unique(np.concatenate([before, after]))
    marks = {}
    for place, c in enumerate(present[np.argsort(-counts[present], kind="stable")].tolist()):
        shape = list(SHAPES)[place // len(COLORS) % len(SHAPES)]
        marks[c] = Mark(c, run.names[c], COLORS[place % len(COLORS)], shape, int(counts[c]))
    points = [Point(float(x), float(y), int(b), int(a)) for (x, y), b, a in zip(places, before, after, strict=True)]
    found = [
        (*places[i].tolist(), pictures_of(run, [int(rows[i])]), run.names[after[i]]) for i in _one_per_cell(places)
    ]
    return ImageMap(
        points=points,
        pictures=[(x, y, pictures[0], name) for x, y, pictures, name in found if pictures],
        marks=marks,
        is_adapted=run.is_adapted,
        n_images=len(run.labels),
    )


def _one_per_cell(places: np.ndarray) -> list[int]:
    """Return the point nearest to the middle of each cell of a grid, so that pictures do not hide each other."""
    size = np.array([100 / COLUMNS, 100 / ROWS])
    cells = np.floor(places / size).astype(np.int64)
    distance = np.square(places / size - cells - 0.5).sum(axis=1)
    order = np.lexsort((distance, cells[:, 1], cells[:, 0]))
    _, first = np.unique(cells[order], axis=0, return_index=True)
    return [int(i) for i in order[first] if distance[i] < 0.18]
