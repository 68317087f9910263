"""The labels of a run as the formats for labels need them: chosen, filtered, with probabilities where asked for."""

from __future__ import annotations

import csv
from dataclasses import dataclass

import numpy as np

from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError, RunFolderError
from captune.exports.base import ExportSettings, FinishedRun
from captune.results.evidence import PSEUDO_LABELS

TAKES = frozenset({"min_confidence", "source"})


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Labels of some images of a run; all sequences have one entry for each labeled image.

    Attributes:
        class_names: Names of all classes.
        rows: Positions in the run's table of predictions.
        names: The images' names, relative to the folder of images.
        labels: Class ids.
        confidence: Probabilities of these classes.
    """

    class_names: tuple[str, ...]
    rows: Ints
    names: tuple[str, ...]
    labels: Ints
    confidence: Floats

    def __len__(self) -> int:
        return len(self.rows)


def choose_labels(run: FinishedRun, settings: ExportSettings) -> LabelTable:
    """Return the labels that an export asked for, at least one."""
    record = run.record
    if settings.source == "pseudo-labels":
        rows, labels, confidence = _pseudo_labels(run)
    else:
        rows, labels, confidence = np.arange(len(record.images)), record.labels, record.confidence
    kept = confidence >= settings.min_confidence
    if not kept.any():
        highest = f", the highest is {confidence.max():.4f}" if len(confidence) else ""
        raise InputError(
            f"None of the {len(confidence)} labels in {str(run.folder)!r} has a confidence of at least "
            f"{settings.min_confidence}{highest}. Lower --min-confidence."
        )
    rows = rows[kept]
    names = tuple(record.images.name(int(row)) for row in rows)
    return LabelTable(record.names, rows, names, labels[kept], confidence[kept])


def probabilities_of(run: FinishedRun, rows: Ints) -> Floats:
    """Return the probabilities `(rows, classes)` that the run kept; of very large runs they are computed again."""
    record = run.record
    kept = np.asarray(record.arrays.get("rows", ()), dtype=np.int64)
    places = np.minimum(np.searchsorted(kept, rows), max(len(kept) - 1, 0))
    if len(kept) and np.array_equal(kept[places], rows):
        return np.asarray(record.arrays["after"][places], dtype=np.float32)
    from captune.core import runtime
    from captune.embeddings.cache import EmbeddingCache
    from captune.results.classifier import predict_collection

    images = record.images.subset(rows)
    predictions, skipped = predict_collection(run.classifier, images, EmbeddingCache(), runtime.start())
    if skipped:
        first, why = next(iter(skipped.items()))
        raise InputError(
            f"{len(skipped)} images of the run cannot be read any more, first {images.name(first)!r}: {why}. "
            f"Put the images back to {str(images.root)!r}."
        )
    return predictions.probabilities


def _pseudo_labels(run: FinishedRun) -> tuple[Ints, Ints, Floats]:
    path = run.folder / PSEUDO_LABELS
    record = run.record
    if not path.is_file():
        raise InputError(
            f"The run {str(run.folder)!r} (method {record.method}) made no pseudo-labels. Use --source predictions."
        )
    row_of = {record.images.name(row): row for row in range(len(record.images))}
    class_ids = {name: i for i, name in enumerate(record.names)}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            entries = [
                (row_of[entry["path"]], class_ids[entry["label"]], float(entry["confidence"]))
                for entry in csv.DictReader(file)
                if entry["path"] in row_of  # an image may have gone between its pseudo-label and its prediction
            ]
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise RunFolderError(f"{str(path)!r} is damaged: {type(error).__name__}: {error}.") from error
    rows, labels, confidence = zip(*entries, strict=True) if entries else ((), (), ())
    return np.asarray(rows, np.int64), np.asarray(labels, np.int64), np.asarray(confidence, np.float32)
