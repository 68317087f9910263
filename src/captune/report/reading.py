"""A run folder, read for the report: tables, arrays and, where a person has them, the true labels."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from captune.arrays import Floats, Ints
from captune.data.images import ImageCollection, read_labels
from captune.errors import InputError, RunFolderError
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
        set_aside: Names of the other images, and why they were left out.
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
    set_aside: Sequence[tuple[str, str]]
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
    names = tuple(card["classes"])
    ids = {name: i for i, name in enumerate(names)}
    try:
        predicted = _rows(path / "predictions.csv")
        root = Path(card.get("image_root", "."))
        images = ImageCollection(tuple(root / row["path"] for row in predicted), root)
        row_of = {row["path"]: i for i, row in enumerate(predicted)}
        has_labels = (path / PSEUDO_LABELS).is_file()
        given = [ids[row["label"]] for row in _rows(path / PSEUDO_LABELS)] if has_labels else []
        record = RunRecord(
            folder=path,
            card=card,
            names=names,
            images=images,
            labels=np.asarray([ids[row["label"]] for row in predicted], dtype=np.int64),
            confidence=np.asarray([float(row["confidence"]) for row in predicted], dtype=np.float32),
            set_aside=[(row["path"], row["reason"]) for row in _rows(path / "set_aside.csv")],
            arrays=load_file(path / FILE) if (path / FILE).is_file() else {},
            pseudo_labels=np.bincount(np.asarray(given, dtype=np.int64), minlength=len(names)) if has_labels else None,
            history=_replay(_rows(path / HISTORY), row_of, ids) if has_labels else (),
            truth=None if labels is None else read_labels(labels, images, names),
        )
    except InputError:
        raise
    except Exception as error:  # a file that was changed by hand can fail in any way
        raise RunFolderError(f"The run {str(folder)!r} is damaged: {type(error).__name__}: {error}.") from error
    if record.truth is not None and not np.any(record.truth >= 0):
        raise InputError(f"None of the {len(images)} images of the run has a label in {str(labels)!r}.")
    return record


def _replay(changes: Sequence[Mapping[str, str]], row_of: Mapping[str, int], ids: Mapping[str, int]) -> list[Labeled]:
    """Return the whole pseudo-labels of each epoch from what changed."""
    states: list[Labeled] = []
    now: dict[int, int] = {}
    for number, change in enumerate(changes):
        row = row_of.get(change["path"], -1)  # an image may have gone between its pseudo-label and its prediction
        now.pop(row, None)
        if change["label"] and row >= 0:
            now[row] = ids[change["label"]]
        if number + 1 == len(changes) or changes[number + 1]["epoch"] != change["epoch"]:
            rows, labels = (np.asarray(list(part), dtype=np.int64) for part in (now.keys(), now.values()))
            states.append(Labeled(int(change["epoch"]), rows, labels))
    return states


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
