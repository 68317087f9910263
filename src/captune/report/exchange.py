"""Which classes exchange images: two labelings of the same images as a matrix, with pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from captune.core.arrays import Ints, evenly_spaced
from captune.report.measures import Measures
from captune.report.pictures import Picture, pictures_of
from captune.results.run import Run

MOST_CLASSES = 24
MOST_PAIRS = 12
MOST_OF_PAIR = 5
HESITATES = 0.5
"""The second best class counts if it is at least this many times as probable as the best."""


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
    n_pairs: int
    n_classes: int

    @property
    def caption(self) -> str:
        """Return what the matrix shows, and what is left out."""
        text = f"Number of images: {self.rows} in rows, {self.columns} in columns"
        if self.n_classes > len(self.names):
            text += f". Shown are the {len(self.names)} classes that exchange the most images, of {self.n_classes:,}"
        return text

    @property
    def left_out(self) -> str:
        """Return how many exchanges are not listed."""
        rest = self.n_pairs - len(self.pairs)
        return f"The {len(self.pairs)} most frequent of {self.n_pairs:,} are shown." if rest else ""


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
    order = np.argsort(-counts, kind="stable")[:MOST_PAIRS]
    pairs = []
    for which in order.tolist():
        found = rows[moved[np.flatnonzero(inverse == which)]]
        found = found[evenly_spaced(len(found), MOST_OF_PAIR)]
        a, b = divmod(int(codes[which]), run.n_classes)
        texts = None if words is None else [words(int(row)) for row in found]
        pairs.append(Pair(run.names[a], run.names[b], int(counts[which]), pictures_of(run, found.tolist(), texts)))
    involved = np.bincount(first[moved], minlength=run.n_classes) + np.bincount(second[moved], minlength=run.n_classes)
    chosen = np.argsort(-involved, kind="stable")[: min(MOST_CLASSES, int((involved > 0).sum()))]
    chosen = np.sort(chosen)
    return Exchange(
        id=id,
        rows=titles[0],
        columns=titles[1],
        names=[run.names[c] for c in chosen],
        cells=_cells(first, second, chosen, [divmod(int(codes[which]), run.n_classes) for which in order.tolist()]),
        pairs=pairs,
        n_images=len(rows),
        n_moved=len(moved),
        n_pairs=len(codes),
        n_classes=int((involved > 0).sum()),
    )


def _cells(first: Ints, second: Ints, chosen: Ints, listed: Sequence[tuple[int, int]]) -> list[list[Cell]]:
    place = {pair: number for number, pair in enumerate(listed, start=1)}
    cells = []
    for a in chosen.tolist():
        given = second[first == a]
        counts = [int((given == b).sum()) for b in chosen.tolist()]
        cells.append(
            [
                Cell(n, n / max(1, len(given)), a == b, place.get((a, b), 0))
                for b, n in zip(chosen.tolist(), counts, strict=True)
            ]
        )
    return cells


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
    probabilities = run.arrays["after"].copy()
    every = np.arange(len(probabilities))
    best = probabilities.argmax(axis=1)
    highest = probabilities[every, best].copy()
    probabilities[every, best] = -1
    second = probabilities.argmax(axis=1)
    other = np.where(probabilities[every, second] >= HESITATES * highest, second, best)
    return exchange(run, measures.rows, best, other, ("best class", "second best class"), "hesitations")
