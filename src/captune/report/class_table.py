"""Tables of classes, and matrices of classes that exchange images between two labelings, with pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from captune.core.arrays import Ints, evenly_spaced
from captune.report.measures import Measures
from captune.report.pictures import Picture, pictures_of
from captune.results.run import Run

MOST_ROWS = 1000
MOST_NAMES = 40
MOST_CLASSES = 24
MOST_PAIRS = 12
MOST_OF_PAIR = 5
HESITATES = 0.5
"""The second best class counts if it is at least this many times as probable as the best."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, one value per row (None if unknown), and how values are shown."""

    title: str
    values: Sequence[Any]
    kind: Literal["name", "number", "text", "sentences"] = "number"
    style: str = "{:d}"

    def text(self, row: int) -> str:
        """Return a name or number as it is shown."""
        value = self.values[row]
        return "–" if value is None else self.style.format(value) if self.kind == "number" else str(value)


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
        for title, labels in measures.first_labels().items():
            own, is_right = measures.checked(labels)
            n_own, n_right = (np.bincount(part, minlength=run.n_classes) for part in (own, own[is_right]))
            shares = [right / n if n else None for right, n in zip(n_right, n_own, strict=True)]
            columns.append(Column(f"Right {title}", shares, style="{:.0%}"))
    if run.pseudo_labels is not None:
        columns.append(Column("Pseudo-labels", run.pseudo_labels.tolist()))
    if run.alignment:
        columns.append(Column("Misleading", known(measures.frequency), style="{:.0%}"))
        columns.append(Column("In one cluster", known(measures.concentration), style="{:.0%}"))
        texts = [tuple(measures.described.get(name, ())) for name in run.names]
        columns.append(Column("Described as", texts, "sentences"))
    if measures.groups:
        groups = {c: group.classes for group in measures.groups for c in group.classes}
        others = [[run.names[o] for o in groups.get(c, ()) if o != c] for c in range(run.n_classes)]
        columns.append(Column("Confused with", [", ".join(names) for names in others], "text"))
    return columns


def capped(columns: Sequence[Column], size: ArrayLike, most: int = MOST_ROWS) -> tuple[list[Column], str]:
    """Return the rows with the largest size, in their order, and a sentence about what is left out."""
    sizes = np.asarray(size)
    if len(sizes) <= most:
        return list(columns), ""
    chosen = np.sort(np.argsort(-sizes, kind="stable")[:most]).tolist()
    kept = [replace(column, values=[column.values[i] for i in chosen]) for column in columns]
    return kept, f"The table shows the {most:,} classes with the most images, of {len(sizes):,}."


def listing(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Return names with commas, and how many more there are if they are many."""
    rest = len(names) - most
    return ", ".join(names) if rest <= 0 else f"{', '.join(names[:most])} and {rest:,} more"


def known(values: Iterable[float]) -> list[float | None]:
    """Return numbers with None for nan."""
    return [None if np.isnan(value) else float(value) for value in values]


@dataclass(frozen=True)
class Pair:
    """Images that one labeling calls `first` and the other one `second`."""

    first: str
    second: str
    n_images: int
    pictures: list[Picture]


@dataclass(frozen=True)
class Cell:
    """A cell of the matrix: its number, its share of the row, and the pair it shows (from 1; 0 if none is listed)."""

    count: int
    share: float
    is_same: bool
    pair: int


@dataclass(frozen=True)
class Exchange:
    """A matrix of the classes that exchange the most images, and the largest exchanges with pictures."""

    id: str
    rows: str
    columns: str
    names: list[str]
    cells: list[list[Cell]]
    pairs: list[Pair]
    n_images: int
    n_moved: int
    caption: str
    left_out: str
    """How many exchanges are not listed."""


def exchange(
    run: Run,
    rows: Ints,
    first: Ints,
    second: Ints,
    titles: tuple[str, str],
    id: str,
    words: Callable[[int], str] | None = None,
) -> Exchange | None:
    """Compare two labelings `(rows,)` of some images of a run; None if they are the same."""
    moved = np.flatnonzero(first != second)
    if not len(moved):
        return None
    codes, inverse, counts = np.unique(
        first[moved] * run.n_classes + second[moved], return_inverse=True, return_counts=True
    )
    pairs, places = [], {}
    for number, which in enumerate(np.argsort(-counts, kind="stable")[:MOST_PAIRS].tolist(), start=1):
        found = rows[moved[np.flatnonzero(inverse == which)]]
        found = found[evenly_spaced(len(found), MOST_OF_PAIR)]
        a, b = divmod(int(codes[which]), run.n_classes)
        places[a, b] = number
        pairs.append(Pair(run.names[a], run.names[b], int(counts[which]), pictures_of(run, found.tolist(), words)))
    involved = sum(np.bincount(labels[moved], minlength=run.n_classes) for labels in (first, second))
    n_involved = int(np.count_nonzero(involved))
    chosen = np.sort(np.argsort(-involved, kind="stable")[: min(MOST_CLASSES, n_involved)]).tolist()
    cells = []
    for a in chosen:
        own = np.bincount(second[first == a], minlength=run.n_classes)
        cells.append([Cell(int(own[b]), own[b] / max(1, own.sum()), a == b, places.get((a, b), 0)) for b in chosen])
    caption = f"Number of images: {titles[0]} in rows, {titles[1]} in columns"
    if n_involved > len(chosen):
        caption += f". Shown are the {len(chosen)} classes that exchange the most images, of {n_involved:,}"
    left_out = f"The {len(pairs)} most frequent of {len(codes):,} are shown." if len(codes) > len(pairs) else ""
    names = [run.names[c] for c in chosen]
    return Exchange(id, *titles, names, cells, pairs, len(rows), len(moved), caption, left_out)


def mistakes(measures: Measures) -> Exchange | None:
    """Return the confusion matrix of the labeled images."""
    run = measures.run
    if run.truth is None:
        return None
    rows = np.flatnonzero(run.truth >= 0)
    return exchange(run, rows, run.truth[rows], run.labels[rows], ("true class", "predicted class"), "mistakes")


def changes(measures: Measures) -> Exchange | None:
    """Return how predictions changed by adaptation."""
    run = measures.run
    if not run.is_adapted:
        return None

    def words(row: int) -> str:
        text = f"confidence {run.confidence[row]:.0%}"
        if run.truth is not None and run.truth[row] >= 0:
            was, now = run.before_labels[row] == run.truth[row], run.labels[row] == run.truth[row]
            text += "; " + ("now right" if now else "was right" if was else f"really {run.names[run.truth[row]]}")
        return text

    titles = ("before adaptation", "after adaptation")
    return exchange(run, np.arange(len(run.labels)), run.before_labels, run.labels, titles, "changes", words)


def hesitations(measures: Measures) -> Exchange | None:
    """Return between which classes the model hesitates, for a run without labels and without adaptation."""
    run = measures.run
    if "after" not in run.arrays or run.n_classes < 2:
        return None
    order = np.argpartition(-run.arrays["after"], (0, 1), axis=1)[:, :2]
    (best, second), found = order.T, np.take_along_axis(run.arrays["after"], order, axis=1)
    other = np.where(found[:, 1] >= HESITATES * found[:, 0], second, best)
    return exchange(run, measures.rows, best, other, ("best class", "second best class"), "hesitations")
