"""Pictures inside a page, small enough to mail, and the map: images that look similar are near each other."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from captune.core.arrays import evenly_spaced
from captune.data.decoding import UnreadableImageError, decode, read_bytes
from captune.embeddings.similarity import project
from captune.report.drawing import SERIES
from captune.report.measures import TRUSTED, Measures
from captune.results.run import Run

SIDES = (256, 192, 128)
QUALITY = 72
MOST_BYTES = 22_000
"""A picture that takes more than this is made smaller, so that a page stays below 20 MB with any images."""
MOST_UNSURE = 24
MOST_GALLERIES = 60
MOST_OF_CLASS = 5
MOST_OF_CLASSES = 240
MOST_POINTS = 1200
FEWEST_POINTS = 12
COLUMNS, ROWS = 11, 7
APART = 5.5, 10.0
"""Percent of width and height between two pictures of the map, so that none hides another or its name."""
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
class Picture:
    """A picture with the image's name, and words to show below it."""

    data: str
    path: str
    words: str


@dataclass(frozen=True)
class ClassGallery:
    """Pictures of the images predicted as a class: the most confident first, the least confident last."""

    name: str
    words: str
    pictures: list[Picture]
    facts: dict[str, float | None]
    """Numbers to sort by: images, confidence, moved, accuracy."""
    is_misleading: bool
    is_unsure: bool


def encode_picture(path: Path) -> str | None:
    """Return a JPEG of an image file as a data URL, or None if it cannot be read."""
    try:
        image = decode(read_bytes(path), smallest=SIDES[0])
    except UnreadableImageError:
        return None
    for side in SIDES:
        image.thumbnail((side, side))
        target = io.BytesIO()
        image.save(target, "JPEG", quality=QUALITY, optimize=True)
        if target.tell() <= MOST_BYTES:
            break
    return f"data:image/jpeg;base64,{base64.b64encode(target.getvalue()).decode('ascii')}"


def pictures_of(run: Run, rows: Iterable[int], words: Iterable[str] | None = None) -> list[Picture]:
    """Return pictures of the images that can be read; the words are the predicted class unless given."""
    rows = list(rows)
    words = [predicted_words(run, row) for row in rows] if words is None else words
    files = [run.shown_file(row) for row in rows]
    found = ((row, text, file and encode_picture(file)) for row, text, file in zip(rows, words, files, strict=True))
    return [Picture(data, run.readable.name(row), text) for row, text, data in found if data]


def predicted_words(run: Run, row: int) -> str:
    """Return the predicted class of an image and its confidence."""
    return f"{run.names[run.labels[row]]}, {run.confidence[row]:.0%}"


def unsure_pictures(measures: Measures) -> list[Picture]:
    """Return the least confident images, each with its class and the next best one."""
    run = measures.run
    rows = np.argsort(run.confidence, kind="stable")[:MOST_UNSURE]
    place = {int(row): i for i, row in enumerate(measures.rows)}
    words = []
    for row in rows.tolist():
        text = predicted_words(run, row)
        if row in place and run.n_classes > 1:
            probabilities = run.arrays["after"][place[row]].copy()
            probabilities[run.labels[row]] = -1
            text += f"; or {run.names[int(probabilities.argmax())]}, {probabilities.max():.0%}"
        words.append(text)
    return pictures_of(run, rows.tolist(), words)


def class_galleries(measures: Measures) -> list[ClassGallery]:
    """Return pictures of the classes with the most images, fewer of each if there are many classes."""
    run, counts, before = measures.run, measures.counts(after=True), measures.counts(after=False)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:MOST_GALLERIES])
    each = max(2, min(MOST_OF_CLASS, MOST_OF_CLASSES // max(1, len(chosen))))
    order = np.lexsort((-run.confidence, run.labels))  # by class, then from the most to the least confident image
    ends, misleading = np.cumsum(counts), set(measures.mismatched)
    accuracies = measures.metrics[1].per_class_accuracy if measures.has_truth else [None] * run.n_classes
    found = []
    for c in chosen.tolist():
        rows, accuracy = order[ends[c] - counts[c] : ends[c]], accuracies[c]
        shown = rows if len(rows) <= each else np.concatenate([rows[: (each + 1) // 2], rows[len(rows) - each // 2 :]])
        words = f"{len(rows):,} images" + (f", {before[c]:,} before" if run.is_adapted else "")
        words += "" if accuracy is None else f"; {accuracy:.0%} of its labeled images are found"
        facts = {
            "images": len(rows),
            "confidence": float(run.confidence[rows].mean()) if len(rows) else 0.0,
            "moved": abs(len(rows) - int(before[c])),
            "accuracy": accuracy,
        }
        is_unsure = bool(measures.highest_confidence[c] < TRUSTED)
        pictures = pictures_of(run, shown.tolist())
        found.append(ClassGallery(run.names[c], words, pictures, facts, c in misleading, is_unsure))
    return found if any(gallery.pictures for gallery in found) else []


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
    """Places in percent from the left and the top: of points with their classes, and of some pictures."""

    points: list[tuple[float, float, int, int]]
    """Place, class before adaptation, class after it."""
    pictures: list[tuple[float, float, Picture, str]]
    marks: dict[int, Mark]
    """The largest class first."""
    is_adapted: bool
    n_images: int
    shapes = SHAPES

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
    points = [(*place, b, a) for place, b, a in zip(places.tolist(), before.tolist(), after.tolist(), strict=True)]
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
    """Return the point nearest to the middle of each cell of a grid, if it is apart from those of other cells."""
    size = np.array([100 / COLUMNS, 100 / ROWS])
    cells = np.floor(places / size).astype(np.int64)
    distance = np.square(places / size - cells - 0.5).sum(axis=1)
    order = np.lexsort((distance, cells[:, 1], cells[:, 0]))
    _, first = np.unique(cells[order], axis=0, return_index=True)
    chosen = np.empty(0, dtype=np.int64)
    for i in order[first]:
        if distance[i] < 0.18 and (np.abs(places[chosen] - places[i]) >= APART).any(axis=1).all():
            chosen = np.append(chosen, i)
    return [int(i) for i in chosen]
