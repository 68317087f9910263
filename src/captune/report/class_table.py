"""The table of classes: what is predicted, what stands for the name, what it is confused with, how it looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from captune.report.measures import Measures
from captune.report.thumbnails import Pictures, class_pictures


@dataclass(frozen=True)
class ClassRow:
    """One class; None where a number is not known."""

    name: str
    before: int
    after: int
    accuracy_before: float | None
    accuracy_after: float | None
    pseudo: int | None
    frequency: float | None
    descriptions: tuple[str, ...]
    confused: str
    pictures: Pictures


def class_table(measures: Measures) -> dict[str, Any]:
    """Return rows for every class and which columns there are."""
    run = measures.run
    has = {
        "before": run.is_adapted,
        "accuracy": measures.has_truth,
        "pseudo": run.pseudo_labels is not None,
        "frequency": bool(run.alignment),
        "groups": bool(measures.groups),
    }
    rows = _rows(measures)
    has["pictures"] = any(row.pictures.most for row in rows)
    columns = [("Class", "text")]
    columns += [("Before", "number"), ("After", "number")] if has["before"] else [("Images", "number")]
    if has["accuracy"]:
        both = [("Accuracy before", "number"), ("Accuracy after", "number")]
        columns += both if has["before"] else [("Accuracy", "number")]
    columns += [("Pseudo-labels", "number")] if has["pseudo"] else []
    columns += [("Misleading", "number"), ("Described as", "text")] if has["frequency"] else []
    columns += [("Confused with", "text")] if has["groups"] else []
    columns += [("Most confident", "pictures"), ("Least confident", "pictures")] if has["pictures"] else []
    return {"rows": rows, "columns": columns, **{f"has_{name}": value for name, value in has.items()}}


def _rows(measures: Measures) -> list[ClassRow]:
    run = measures.run
    unknown = [None] * run.n_classes
    before, after = measures.metrics if measures.has_truth else (None, None)
    described = run.alignment.get("descriptions", {})
    counts = [measures.counts(after=False).tolist(), measures.counts(after=True).tolist()]
    mates = {c: [other for other in group.classes if other != c] for group in measures.groups for c in group.classes}
    pictures = class_pictures(run)
    return [
        ClassRow(
            name=name,
            before=counts[0][c],
            after=counts[1][c],
            accuracy_before=(before.per_class_accuracy if before else unknown)[c],
            accuracy_after=(after.per_class_accuracy if after else unknown)[c],
            pseudo=int(run.pseudo_labels[c]) if run.pseudo_labels is not None else None,
            frequency=None if np.isnan(measures.frequency[c]) else float(measures.frequency[c]),
            descriptions=tuple(described.get(name, ())),
            confused=", ".join(run.names[other] for other in mates.get(c, [])),
            pictures=pictures[c],
        )
        for c, name in enumerate(run.names)
    ]
