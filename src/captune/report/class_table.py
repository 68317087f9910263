"""Sortable tables, and the table of classes with pictures of the most and least confident images."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from captune.core.arrays import Ints
from captune.data.decoding import UnreadableImageError, decode, read_bytes
from captune.report.measures import Measures
from captune.results.reading import RunRecord

SIDE = 56
QUALITY = 68
MOST_PICTURES = 600


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, one value per row (None if unknown), and how values are shown."""

    title: str
    values: Sequence[Any]
    kind: Literal["name", "number", "text", "sentences", "pictures"] = "number"
    style: str = "{:d}"


@dataclass(frozen=True)
class Thumbnail:
    """A small picture with the image's name and the confidence of its label."""

    data: str
    path: str
    confidence: float


def class_columns(measures: Measures) -> list[Column]:
    """Return the columns that a run has data for, with one row per class."""
    run = measures.run
    before, after = (measures.counts(after=when).tolist() for when in (False, True))
    columns = [Column("Class", run.names, "name")]
    columns += [Column("Before", before), Column("After", after)] if run.is_adapted else [Column("Images", after)]
    if measures.has_truth:
        accuracies = [metrics.per_class_accuracy for metrics in measures.metrics]
        columns += [Column("Accuracy before", accuracies[0], style="{:.1%}")] if run.is_adapted else []
        columns.append(Column("Accuracy after" if run.is_adapted else "Accuracy", accuracies[1], style="{:.1%}"))
    if run.pseudo_labels is not None:
        columns.append(Column("Pseudo-labels", run.pseudo_labels.tolist()))
    if run.alignment:
        columns.append(Column("Misleading", known(measures.frequency), style="{:.0%}"))
        described = run.alignment.get("descriptions", {})
        columns.append(Column("Described as", [tuple(described.get(name, ())) for name in run.names], "sentences"))
    if measures.groups:
        groups = {c: group.classes for group in measures.groups for c in group.classes}
        others = [[run.names[o] for o in groups.get(c, ()) if o != c] for c in range(run.n_classes)]
        columns.append(Column("Confused with", [", ".join(names) for names in others], "text"))
    most, least = class_pictures(run)
    if any(most):
        columns += [Column("Most confident", most, "pictures"), Column("Least confident", least, "pictures")]
    return columns


def class_pictures(run: RunRecord) -> tuple[list[list[Thumbnail]], list[list[Thumbnail]]]:
    """Return the most and the least confident images predicted as each class; fewer if there are many classes."""
    each = min(3, MOST_PICTURES // (2 * run.n_classes))
    most, least = [], []
    for class_id in range(run.n_classes):
        rows = np.flatnonzero(run.labels == class_id)
        rows = rows[np.argsort(-run.confidence[rows], kind="stable")]
        n_most = min(each, (len(rows) + 1) // 2)
        most.append(_thumbnails(run, rows[:n_most]))
        least.append(_thumbnails(run, rows[::-1][: min(each, len(rows) - n_most)]))
    return most, least


def _thumbnails(run: RunRecord, rows: Ints) -> list[Thumbnail]:
    found = ((row, encode_thumbnail(run.images.paths[row])) for row in rows.tolist())
    return [Thumbnail(data, run.images.name(row), float(run.confidence[row])) for row, data in found if data]


def encode_thumbnail(path: Path) -> str | None:
    """Return a small JPEG of an image file as a data URL, or None if it cannot be read."""
    try:
        image = decode(read_bytes(path), smallest=2 * SIDE)
    except UnreadableImageError:
        return None
    image.thumbnail((SIDE, SIDE))
    target = io.BytesIO()
    image.save(target, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(target.getvalue()).decode('ascii')}"


def known(values: Iterable[float]) -> list[float | None]:
    """Return numbers with None for nan."""
    return [None if np.isnan(value) else float(value) for value in values]
