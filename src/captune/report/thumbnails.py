"""Small pictures of the most and least confident images of each class, as data inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from captune.data.decoding import UnreadableImageError, decode, read_bytes
from captune.report.reading import RunRecord

SIDE = 56
QUALITY = 68
MOST_PICTURES = 600


@dataclass(frozen=True)
class Thumbnail:
    """A small picture with the image's name and the confidence of its label."""

    data: str
    path: str
    confidence: float


@dataclass(frozen=True)
class Pictures:
    """The most and the least confident images that are predicted as a class."""

    most: Sequence[Thumbnail]
    least: Sequence[Thumbnail]


def class_pictures(run: RunRecord) -> list[Pictures]:
    """Return pictures for every class; fewer of each where there are many classes, none where the images are gone."""
    each = min(3, MOST_PICTURES // (2 * run.n_classes))
    found = []
    for class_id in range(run.n_classes):
        rows = np.flatnonzero(run.labels == class_id)
        rows = rows[np.argsort(-run.confidence[rows], kind="stable")]
        n_most = min(each, (len(rows) + 1) // 2)
        n_least = min(each, len(rows) - n_most)
        most = [make_thumbnail(run, int(row)) for row in rows[:n_most]]
        least = [make_thumbnail(run, int(row)) for row in rows[::-1][:n_least]]
        found.append(Pictures([t for t in most if t], [t for t in least if t]))
    return found


def make_thumbnail(run: RunRecord, row: int) -> Thumbnail | None:
    """Return the picture of one image of a run, or None if its file cannot be read any more."""
    data = encode_thumbnail(run.images.paths[row])
    return None if data is None else Thumbnail(data, run.images.name(row), float(run.confidence[row]))


def encode_thumbnail(path: Path) -> str | None:
    """Return a small JPEG of an image file as a data address, or None if it cannot be read."""
    try:
        image = decode(read_bytes(path), smallest=2 * SIDE)
    except UnreadableImageError:
        return None
    image.thumbnail((SIDE, SIDE))
    target = io.BytesIO()
    image.save(target, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(target.getvalue()).decode('ascii')}"
