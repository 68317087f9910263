"""Sortable tables, and the table of classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from captune.report.measures import Measures

MOST_ROWS = 1000
MOST_NAMES = 40


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
            columns.append(Column(f"Right {title}", known(measures.precision_of(labels)), style="{:.0%}"))
    if run.pseudo_labels is not None:
        columns.append(Column("Pseudo-labels", run.pseudo_labels.tolist()))
    if run.alignment:
        columns.append(Column("Misleading", known(measures.frequency), style="{:.0%}"))
        columns.append(Column("In one cluster", known(measures.concentration), style="{:.0%}"))
        described = run.alignment.get("descriptions", {})
        columns.append(Column("Described as", [tuple(described.get(name, ())) for name in run.names], "sentences"))
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
