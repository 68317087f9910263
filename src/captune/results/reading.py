"""Reading a run folder: its tables, its arrays and, if given, the true labels."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError, RunFolderError
from captune.data.images import ImageCollection
from captune.data.keys import KeyList, Keys, KeySet
from captune.data.labels import read_labels
from captune.data.paths import ImagePaths, NameStoreBuilder
from captune.results.evidence import FILE, HISTORY, PSEUDO_LABELS
from captune.results.run import is_inside, read_run_card


@dataclass(frozen=True)
class EpochLabels:
    """The pseudo-labels after an epoch; `rows` are positions in the run's predictions."""

    epoch: int
    rows: Ints
    labels: Ints


@dataclass(frozen=True, eq=False)
class RunRecord:
    """The content of a run folder.

    Attributes:
        folder: Path of the folder.
        card: Content of run.json.
        names: Class names.
        images: The readable images, in the order of the predictions.
        labels: The predicted class of each image, after adaptation.
        confidence: The probability of that class.
        skipped: Names of the skipped images, and the reasons.
        arrays: The saved evidence; may be empty.
        pseudo_labels: Final number of pseudo-labels of each class; None if the method makes none.
        history: The pseudo-labels during training.
        truth: True class ids, -1 where unknown; None without labels.
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
    history: Sequence[EpochLabels]
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
        """Return whether adaptation changed the probabilities."""
        return "before" in self.arrays and not np.allclose(self.arrays["before"], self.arrays["after"], atol=1e-4)

    @cached_property
    def before_labels(self) -> Ints:
        """Return the zero-shot prediction for each readable image."""
        return np.asarray(self.arrays.get("before_labels", self.labels), dtype=np.int64)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """Return what the method recorded for each epoch."""
        return [facts for facts in self.card["rounds"] if facts.get("step") == "epoch"]

    @property
    def alignment(self) -> dict[str, Any]:
        """Return what the detection of misleading names recorded, empty if there was none."""
        return next((facts for facts in self.card["rounds"] if facts.get("step") == "concept_alignment"), {})


def read_run(folder: str | Path, labels: Any = None) -> RunRecord:  # noqa: ANN401 (what `read_labels` takes)
    """Read a run folder; `labels` are `folders`, a table (path, label), or one label for each readable image."""
    path = Path(folder)
    card = read_run_card(path)
    try:
        names = tuple(card["classes"])
        ids = {name: i for i, name in enumerate(names)}
        predicted = _read_predictions(path / "predictions.csv", Path(card.get("image_root", ".")), ids)
        images = predicted.images
        outside = (images.name(i) for i in range(len(images)) if not is_inside(images.name(i)))
        if card.get("images_in_root") and (first := next(outside, None)) is not None:
            raise InputError(
                f"{str(path / 'predictions.csv')!r} was changed: {first!r} is outside the folder of the images. "
                "Adapt again, or correct the table."
            )
        pseudo_labels = None
        if (path / PSEUDO_LABELS).is_file():
            final = np.asarray([ids[row["label"]] for row in _rows(path / PSEUDO_LABELS)], dtype=np.int64)
            pseudo_labels = np.bincount(final, minlength=len(names))
        record = RunRecord(
            folder=path,
            card=card,
            names=names,
            images=images,
            labels=predicted.labels,
            confidence=predicted.confidence,
            skipped=[(row["path"], row["reason"]) for row in _rows(path / "skipped.csv")],
            arrays=load_file(path / FILE) if (path / FILE).is_file() else {},
            pseudo_labels=pseudo_labels,
            history=() if pseudo_labels is None else _replay(_rows(path / HISTORY), KeySet(predicted.keys), ids),
            truth=None if labels is None else read_labels(labels, images, names),
        )
    except InputError:
        raise
    except Exception as error:  # files that were edited by hand can fail in any way
        raise RunFolderError(f"The run {str(folder)!r} is damaged: {type(error).__name__}: {error}.") from error
    if record.truth is not None and not np.any(record.truth >= 0):
        raise InputError(f"None of the {len(images)} images of the run has a label in {str(labels)!r}.")
    return record


class _Predicted(NamedTuple):
    """The predictions in a few bytes per image; `keys` are digests of the paths."""

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


def _replay(rows: Iterable[Mapping[str, str]], known: KeySet, ids: Mapping[str, int]) -> list[EpochLabels]:
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


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
