"""Pictures inside a page: small enough to mail, large enough to look at."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from captune.core.arrays import Ints
from captune.data.decoding import UnreadableImageError, decode, read_bytes
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
    n_images: int
    confidence: float
    moved: int
    accuracy: float | None
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
    run, counts = measures.run, measures.counts(after=True)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:MOST_GALLERIES])
    each = max(2, min(MOST_OF_CLASS, MOST_OF_CLASSES // max(1, len(chosen))))
    # By class, and within a class from the most to the least confident image.
    order = np.lexsort((-run.confidence, run.labels))
    ends = np.cumsum(counts)
    before, misleading = measures.counts(after=False), set(measures.mismatched)
    accuracies = measures.metrics[1].per_class_accuracy if measures.has_truth else [None] * run.n_classes
    found = []
    for class_id in chosen.tolist():
        rows = order[ends[class_id] - counts[class_id] : ends[class_id]]
        pictures = pictures_of(run, _both_ends(rows, each).tolist())
        found.append(
            ClassGallery(
                name=run.names[class_id],
                words=_class_words(measures, class_id, len(rows)),
                pictures=pictures,
                n_images=len(rows),
                confidence=float(run.confidence[rows].mean()) if len(rows) else 0.0,
                moved=abs(len(rows) - int(before[class_id])),
                accuracy=accuracies[class_id],
                is_misleading=class_id in misleading,
                is_unsure=bool(measures.highest_confidence[class_id] < TRUSTED),
            )
        )
    return found if any(gallery.pictures for gallery in found) else []


def _both_ends(rows: Ints, n: int) -> Ints:
    if len(rows) <= n:
        return rows
    return np.concatenate([rows[: (n + 1) // 2], rows[len(rows) - n // 2 :]])


def _class_words(measures: Measures, class_id: int, n_images: int) -> str:
    text = f"{n_images:,} images"
    if measures.run.is_adapted:
        text += f", {measures.counts(after=False)[class_id]:,} before"
    if measures.has_truth and (accuracy := measures.metrics[1].per_class_accuracy[class_id]) is not None:
        text += f"; {accuracy:.0%} of its labeled images are found"
    return text
