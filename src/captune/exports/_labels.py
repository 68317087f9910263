"""The labels of a run, selected and filtered as an export asks for."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from captune.core.arrays import Floats, Ints, Rows
from captune.core.errors import InputError, RunFolderError
from captune.core.wording import option
from captune.exports.base import ExportSettings
from captune.results.evidence import PSEUDO_LABELS
from captune.results.run import Run
from captune.review.accept import accepted_rows
from captune.review.opening import open_session

TAKES = frozenset({"min_confidence", "source", "precision"})


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Labels of some images of a run.

    Attributes:
        class_names: Names of all classes.
        rows: Positions of the images in the run's predictions.
        names: Image paths, relative to the image folder.
        labels: Class ids.
        confidence: Probabilities of these classes.
        n_images: Number of images in the run.
        certificate: What is certain about the labels, if a precision was asked for.
    """

    class_names: tuple[str, ...]
    rows: Rows
    names: tuple[str, ...]
    labels: Ints
    confidence: Floats
    n_images: int
    certificate: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, kept: Ints) -> LabelTable:
        """Return the labels at some positions."""
        names = tuple(self.names[i] for i in kept)
        return replace(
            self, rows=Rows(self.rows[kept]), names=names, labels=self.labels[kept], confidence=self.confidence[kept]
        )

    def entries(self, prefix: str | None = None) -> Iterator[tuple[str, int, float]]:
        """Yield the prefixed path, class id and confidence of each image."""
        for name, label, confidence in zip(self.names, self.labels.tolist(), self.confidence.tolist(), strict=True):
            yield f"{prefix or ''}{name}", label, confidence

    @property
    def remark(self) -> str:
        """Return how many images are exported."""
        if self.certificate is not None:
            return str(self.certificate["sentence"])
        return f"Exported the labels of {len(self)} of {self.n_images} images."


def choose_labels(run: Run, settings: ExportSettings) -> LabelTable:
    """Return the labels to export, at least one."""
    certificate = None
    if settings.precision is not None:
        rows, labels, confidence, certificate = _accepted_labels(run, settings.precision)
    elif settings.source == "pseudo-labels":
        rows, labels, confidence = _pseudo_labels(run)
    else:
        rows, labels, confidence = np.arange(len(run.readable)), run.labels, run.confidence
    kept = (confidence >= settings.min_confidence) & ~run.is_rejected[rows]
    if not kept.any():
        highest = f", the highest is {confidence.max():.4f}" if len(confidence) else ""
        raise InputError(
            f"None of the {len(confidence)} labels in {str(run.folder)!r} has a confidence of at least "
            f"{settings.min_confidence}{highest}. Lower {option('min_confidence')}."
        )
    rows = rows[kept]
    names = tuple(run.readable.name(int(row)) for row in rows)
    return LabelTable(run.names, Rows(rows), names, labels[kept], confidence[kept], len(run.readable), certificate)


def _accepted_labels(run: Run, precision: float) -> tuple[Ints, Ints, Floats, dict[str, Any]]:
    session = open_session(run.folder, quiet=True)
    found = session.accept(precision)
    if not len(found):
        raise InputError(
            f"{found.sentence} Images to check: captune suggest {run.folder} --for-precision {precision:g} --out FILE"
        )
    rows = ({"path": path, "label": label, "confidence": p} for path, label, p, _ in accepted_rows(session, found))
    return *_find_rows(run, rows), found.as_dict()


def _pseudo_labels(run: Run) -> tuple[Ints, Ints, Floats]:
    path = run.folder / PSEUDO_LABELS
    if not path.is_file():
        raise InputError(
            f"The run {str(run.folder)!r} (method {run.method}) has no pseudo-labels. "
            f"Use {option('source', 'predictions')}."
        )
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return _find_rows(run, csv.DictReader(file))
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise RunFolderError(f"{str(path)!r} is damaged: {type(error).__name__}: {error}.") from error


def _find_rows(run: Run, table: Iterable[Mapping[str, str]]) -> tuple[Ints, Ints, Floats]:
    """Return the rows, class ids and confidences of a table; an image that is not in the run any more is left out."""
    row_of = {run.readable.name(row): row for row in range(len(run.readable))}
    class_ids = {name: i for i, name in enumerate(run.names)}
    entries = [
        (row_of[entry["path"]], class_ids[entry["label"]], float(entry["confidence"]))
        for entry in table
        if entry["path"] in row_of
    ]
    rows, labels, confidence = zip(*entries, strict=True) if entries else ((), (), ())
    return np.asarray(rows, np.int64), np.asarray(labels, np.int64), np.asarray(confidence, np.float32)
