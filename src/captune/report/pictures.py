"""Pictures inside a page, small enough to mail, and the map: images that look similar are near each other."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "wedge")
MOST_CHOICES = 300


@dataclass(frozen=True)
class Picture:
    """A picture with the image's name, and words to show below it."""

    data: str
    path: str
    words: str


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


def pictures_of(run: Run, rows: Iterable[int], words: Callable[[int], str] | None = None) -> list[Picture]:
    """Return pictures of the images that can be read; the words are the predicted class unless given."""
    files = ((row, run.shown_file(row)) for row in rows)
    found = ((row, encode_picture(file)) for row, file in files if file)
    words = words or partial(predicted_words, run)
    return [Picture(data, run.readable.name(row), words(row)) for row, data in found if data]


def predicted_words(run: Run, row: int) -> str:
    """Return the predicted class of an image and its confidence."""
    return f"{run.names[run.labels[row]]}, {run.confidence[row]:.0%}"


def unsure_pictures(measures: Measures) -> list[Picture]:
    """Return the least confident images, each with its class and the next best one."""
    run, place = measures.run, {row: i for i, row in enumerate(measures.rows.tolist())}

    def words(row: int) -> str:
        if row not in place or run.n_classes < 2:
            return predicted_words(run, row)
        probabilities = run.arrays["after"][place[row]].copy()
        probabilities[run.labels[row]] = -1
        best = probabilities.argmax()
        return f"{predicted_words(run, row)}; or {run.names[best]}, {probabilities[best]:.0%}"

    return pictures_of(run, np.argsort(run.confidence, kind="stable")[:MOST_UNSURE].tolist(), words)


def class_galleries(measures: Measures) -> list[dict[str, Any]]:
    """Return pictures of the classes with the most images, fewer of each if there are many classes.

    The most confident images of a class come first, the least confident last; `facts` are numbers to sort by.
    """
    run, counts, before = measures.run, measures.counts(after=True), measures.counts(after=False)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:MOST_GALLERIES])
    each = max(2, min(MOST_OF_CLASS, MOST_OF_CLASSES // max(1, len(chosen))))
    order = np.lexsort((-run.confidence, run.labels))  # by class, then from the most to the least confident image
    ends, found = np.cumsum(counts), []
    for c in chosen.tolist():
        rows = order[ends[c] - counts[c] : ends[c]]
        accuracy = measures.metrics[1].per_class_accuracy[c] if measures.has_truth else None
        shown = rows if len(rows) <= each else np.concatenate([rows[: (each + 1) // 2], rows[len(rows) - each // 2 :]])
        words = f"{len(rows):,} images" + (f", {before[c]:,} before" if run.is_adapted else "")
        words += "" if accuracy is None else f"; {accuracy:.0%} of its labeled images are found"
        facts = {
            "images": len(rows),
            "confidence": float(run.confidence[rows].mean()) if len(rows) else 0.0,
            "moved": abs(len(rows) - int(before[c])),
            "accuracy": accuracy,
        }
        found.append(
            {
                "name": run.names[c],
                "words": words,
                "pictures": pictures_of(run, shown),
                "facts": facts,
                "is_misleading": c in measures.mismatched,
                "is_unsure": measures.highest_confidence[c] < TRUSTED,
            }
        )
    return found if any(gallery["pictures"] for gallery in found) else []


def image_map(measures: Measures) -> dict[str, Any] | None:
    """Return the map of an evenly spaced sample of the images, None without saved embeddings.

    Places are in percent from the left and the top: of points, with their classes before and after adaptation, and of
    some pictures. The marks say how the images of each class are drawn, the largest class first.
    """
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
        shape, color = SHAPES[place // len(COLORS) % len(SHAPES)], COLORS[place % len(COLORS)]
        marks[c] = {"id": c, "name": run.names[c], "color": color, "shape": shape, "n_images": int(counts[c])}
    chosen = _one_per_cell(places)
    pictures = [(*places[i], picture, run.names[after[i]]) for i in chosen for picture in pictures_of(run, [rows[i]])]
    return {
        "points": list(zip(*places.T.tolist(), before.tolist(), after.tolist(), strict=True)),
        "pictures": pictures,
        "marks": marks,
        "legend": list(marks.values())[:MOST_CHOICES],
        "is_adapted": run.is_adapted,
        "n_images": len(run.labels),
    }


def _one_per_cell(places: NDArray[np.float64]) -> list[int]:
    """Return the point nearest to the middle of each cell of a grid, if it is apart from those of other cells."""
    size = np.array([100 / COLUMNS, 100 / ROWS])
    cells = np.floor(places / size).astype(np.int64)
    distance = np.square(places / size - cells - 0.5).sum(axis=1)
    order = np.lexsort((distance, cells[:, 1], cells[:, 0]))
    chosen = list[int]()
    for i in order[np.unique(cells[order], axis=0, return_index=True)[1]].tolist():
        if distance[i] < 0.18 and (np.abs(places[chosen] - places[i]) >= APART).any(axis=1).all():
            chosen.append(i)
    return chosen
