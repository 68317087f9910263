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

from captune.core.arrays import Floats, Ints
from captune.data.images import ImageCollection
from captune.data.keys import KeyList, Keys, KeySet
from captune.data.paths import ImagePaths, NameStoreBuilder


@dataclass(frozen=True)
class EpochLabels:
    """The pseudo-labels after an epoch; `rows` are positions in the run's predictions."""

    epoch: int
    rows: Ints
    labels: Ints


class Predicted(NamedTuple):
    """The predictions in a few bytes per image; `keys` are digests of the paths."""

    images: ImageCollection
    labels: Ints
    confidence: Floats
    keys: Keys


def read_predictions(path: Path, root: Path, ids: Mapping[str, int]) -> Predicted:
    """Read predictions.csv row by row."""
    names, keys, labels, confidence = NameStoreBuilder(), KeyList(), array("q"), array("f")
    names.begin(root)
    for row in read_rows(path):
        names.add(row["path"])
        keys.add(row["path"])
        labels.append(ids[row["label"]])
        confidence.append(float(row["confidence"]))
    return Predicted(
        ImageCollection(ImagePaths(names.finish()), root),
        np.asarray(labels, dtype=np.int64),
        np.asarray(confidence, dtype=np.float32),
        keys.keys(),
    )


def replay_history(rows: Iterable[Mapping[str, str]], known: KeySet, ids: Mapping[str, int]) -> list[EpochLabels]:
    """Return all pseudo-labels after each epoch from a table of changes."""
    changes, keys = list(rows), KeyList()
    for change in changes:
        keys.add(change["path"])
    positions = known.find(keys.keys()).tolist()
    states: list[EpochLabels] = []
    now: dict[int, int] = {}
    for epoch, group in groupby(zip(changes, positions, strict=True), key=lambda pair: pair[0]["epoch"]):
        for change, position in group:
            now.pop(position, None)
            if change["label"] and position >= 0:  # -1: an image may have been removed during the run
                now[position] = ids[change["label"]]
        states.append(EpochLabels(int(epoch), *(np.asarray(list(part), np.int64) for part in (now, now.values()))))
    return states


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a table by column name."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
