"""The tables of a run folder, read row by row."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from captune.core.arrays import Floats, Ints, Rows
from captune.data.images import ImageCollection
from captune.data.vocabulary import NONE


@dataclass(frozen=True)
class EpochLabels:
    """The pseudo-labels after an epoch; `rows` are positions in the run's predictions."""

    epoch: int
    rows: Rows
    labels: Ints


class Predicted(NamedTuple):
    """The predictions of a run."""

    images: ImageCollection
    labels: Ints
    confidence: Floats
    fits: Floats | None


def read_predictions(path: Path, root: Path, ids: Mapping[str, int]) -> Predicted:
    """Read predictions.csv row by row."""
    names, labels, confidence, fits = list[str](), array("q"), array("f"), array("f")
    for row in read_rows(path):
        names.append(row["path"])
        labels.append(ids[row["nearest"] if row["label"] == NONE else row["label"]])
        confidence.append(float(row["confidence"]))
        fits.append(float(row.get("fits") or np.nan))
    return Predicted(
        ImageCollection((root / name for name in names), root),
        np.asarray(labels, dtype=np.int64),
        np.asarray(confidence, dtype=np.float32),
        None if np.isnan(fits).any() else np.asarray(fits, dtype=np.float32),
    )


def replay_history(
    rows: Iterable[Mapping[str, str]], known: Mapping[str, int], ids: Mapping[str, int]
) -> list[EpochLabels]:
    """Return all pseudo-labels after each epoch from a table of changes; `known` has the row of each path."""
    states: list[EpochLabels] = []
    now: dict[int, int] = {}
    for epoch, group in groupby(rows, key=lambda change: change["epoch"]):
        for change in group:
            position = known.get(change["path"], -1)
            now.pop(position, None)
            if change["label"] and position >= 0:  # -1: an image may have been removed during the run
                now[position] = ids[change["label"]]
        rows, labels = (np.asarray(list(part), np.int64) for part in (now, now.values()))
        states.append(EpochLabels(int(epoch), Rows(rows), labels))
    return states


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a table by column name."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
