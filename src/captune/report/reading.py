"""A run folder, read for the report: tables, arrays and, where a person has them, the true labels."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError, RunFolderError
from captune.data.images import ImageCollection, read_labels
from captune.data.keys import KeyList, Keys, KeySet
from captune.data.paths import ImagePaths, NameStoreBuilder
from captune.results.evidence import FILE, HISTORY, PSEUDO_LABELS
from captune.results.run import read_card


@dataclass(frozen=True)
class Labeled:
    """Pseudo-labels as they stood after an epoch; `rows` are positions in the run's table of predictions."""

    epoch: int
    rows: Ints
    labels: Ints


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What a run folder says.

    Attributes:
        folder: Where it is.
        card: What run.json says.
        names: Class names.
        images: The readable images, in the order of the predictions.
        labels: The class predicted for each, after adaptation.
        confidence: Its probability.
        skipped: Names of the other images, and why they were left out.
        arrays: The kept evidence; empty for a run of an older captune.
        pseudo_labels: How many pseudo-labels each class had at the end; None if the method makes none.
        history: The pseudo-labels on the way.
        truth: True class ids, -1 where unknown; None where no labels were given.
    """

    folder: Path
    card: Mapping[str, Any]
    names: tuple[str, ...]
    images: ImageCollection
    labels: Ints
    confidence: Floats
    skipped: Sequence[tuple[str, str]]
    arrays: Mapping[str, NDArray[Any]]
    pseudo_labels: Ints | None
    history: Sequence[Labeled]
    truth: Ints | None

    @property
    def n_classes(self) -> int:
        """Return the number of classes."""
        return len(self.names)

    @property
    def method(self) -> str:
        """Return the method's id."""
        return str(self.card["settings"].get("method", "?"))

    @cached_property
    def is_adapted(self) -> bool:
        """Return whether there is a before and an after; zero-shot prediction has only one state."""
        return "before" in self.arrays and not np.allclose(self.arrays["before"], self.arrays["after"], atol=1e-4)

    @cached_property
    def before_labels(self) -> Ints:
        """Return the class that zero-shot predicts for each readable image."""
        return np.asarray(self.arrays.get("before_labels", self.labels), dtype=np.int64)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """Return what the method recorded of each epoch."""
        return [facts for facts in self.card["rounds"] if facts.get("step") == "epoch"]

    @property
    def alignment(self) -> dict[str, Any]:
        """Return what the search for misleading names recorded, empty if there was none."""
        return next((facts for facts in self.card["rounds"] if facts.get("step") == "concept_alignment"), {})


def read_run(folder: str | Path, labels: str | Path | None = None) -> RunRecord:
    """Read a run folder; `labels` is `folders` or a table (path, label)."""
    path = Path(folder)
    card = read_card(path)
    try:
        names = tuple(card["classes"])
        ids = {name: i for i, name in enumerate(names)}
        predicted = _read_predictions(path / "predictions.csv", Path(card.get("image_root", ".")), ids)
        images = predicted.images
        has_labels = (path / PSEUDO_LABELS).is_file()
        given = [ids[row["label"]] for row in _rows(path / PSEUDO_LABELS)] if has_labels else []
        record = RunRecord(
            folder=path,
            card=card,
            names=names,
            images=images,
            labels=predicted.labels,
            confidence=predicted.confidence,
            skipped=[(row["path"], row["reason"]) for row in _rows(path / "skipped.csv")],
            arrays=load_file(path / FILE) if (path / FILE).is_file() else {},
            pseudo_labels=np.bincount(np.asarray(given, dtype=np.int64), minlength=len(names)) if has_labels else None,
            history=_replay(list(_rows(path / HISTORY)), KeySet(predicted.keys), ids) if has_labels else (),
            truth=None if labels is None else read_labels(labels, images, names),
        )
    except InputError:
        raise
    except Exception as error:  # a file that was changed by hand can fail in any way
        raise RunFolderError(f"The run {str(folder)!r} is damaged: {type(error).__name__}: {error}.") from error
    if record.truth is not None and not np.any(record.truth >= 0):
        raise InputError(f"None of the {len(images)} images of the run has a label in {str(labels)!r}.")
    return record


class _Predicted(NamedTuple):
    """The table of predictions in few bytes a row; `keys` are digests of the paths."""

    images: ImageCollection
    labels: Ints
    confidence: Floats
    keys: Keys


def _read_predictions(path: Path, root: Path, ids: Mapping[str, int]) -> _Predicted:
    """Read predictions.csv row by row."""
    names, keys, labels, confidence = NameStoreBuilder(), KeyList(), array("q"), array("f")
    names.begin(root)
    for row in _rows(path):
        names.add(row["path"])
        keys.add(row["path"])
        labels.append(ids[row["label"]])
        confidence.append(float(row["confidence"]))
    return _Predicted(
        ImageCollection(ImagePaths(names.finish()), root),
        np.asarray(labels, dtype=np.int64),
        np.asarray(confidence, dtype=np.float32),
        keys.keys(),
    )


def _replay(changes: Sequence[Mapping[str, str]], known: KeySet, ids: Mapping[str, int]) -> list[Labeled]:
    """Return the whole pseudo-labels of each epoch from what changed."""
    keys = KeyList()
    for change in changes:
        keys.add(change["path"])
    rows_of_changes = known.find(keys.keys()).tolist()
    states: list[Labeled] = []
    now: dict[int, int] = {}
    for number, change in enumerate(changes):
        row = rows_of_changes[number]  # -1: an image may have gone between its pseudo-label and its prediction
        now.pop(row, None)
        if change["label"] and row >= 0:
            now[row] = ids[change["label"]]
        if number + 1 == len(changes) or changes[number + 1]["epoch"] != change["epoch"]:
            rows, labels = (np.asarray(list(part), dtype=np.int64) for part in (now.keys(), now.values()))
            states.append(Labeled(int(change["epoch"]), rows, labels))
    return states


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
