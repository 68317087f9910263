"""The map of a run's images: images that look similar to the model are near each other, some as pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from captune.core.arrays import evenly_spaced
from captune.embeddings.projection import project
from captune.report.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from captune.report.measures import Measures
from captune.report.pictures import Picture, pictures_of

MOST_POINTS = 1200
FEWEST_POINTS = 12
COLUMNS, ROWS = 11, 7
COLORS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
MOST_CHOICES = 200


@dataclass(frozen=True)
class Point:
    """An image on the map, in percent from the left and the top, with its classes and colors."""

    x: float
    y: float
    before: int
    after: int
    color_before: str
    color_after: str


@dataclass(frozen=True)
class ImageMap:
    """A map with points, some pictures, the colors of the largest classes, and the classes to choose from."""

    points: list[Point]
    pictures: list[tuple[float, float, Picture, str]]
    colors: list[tuple[str, str]]
    choices: list[tuple[int, str]]
    is_adapted: bool
    n_images: int


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
    largest = np.argsort(-np.bincount(after, minlength=run.n_classes), kind="stable")
    colors = {int(c): color for c, color in zip(largest, COLORS, strict=False)}
    points = [
        Point(float(x), float(y), int(b), int(a), colors.get(int(b), GREY), colors.get(int(a), GREY))
        for (x, y), b, a in zip(places, before, after, strict=True)
    ]
    found = [
        (*places[i].tolist(), pictures_of(run, [int(rows[i])]), run.names[after[i]]) for i in _one_per_cell(places)
    ]
    present = np.unique(np.concatenate([before, after]))
    return ImageMap(
        points=points,
        pictures=[(x, y, pictures[0], name) for x, y, pictures, name in found if pictures],
        colors=[(color, run.names[c]) for c, color in colors.items() if (after == c).any()],
        choices=[(int(c), run.names[c]) for c in sorted(present[:MOST_CHOICES], key=lambda c: run.names[c].lower())],
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
