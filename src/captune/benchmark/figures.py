"""The paper's figures from finished cells: pairs of methods that differ in the margin or in concept alignment only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from captune.benchmark.cells import Results
from captune.benchmark.compared import GroupNumbers, draw_chosen_classes, draw_extreme_classes, draw_group_comparison
from captune.benchmark.suite import Place, Suite, Table
from captune.core.files import table, write_whole
from captune.report.drawing import Drawing

SHARES = "class-shares.csv"


@dataclass(frozen=True)
class Row:
    """The finished cells of one method on one dataset and setting, in the order of the seeds."""

    method: str
    settings: Mapping[str, Any]
    cells: Sequence[Mapping[str, Any]]

    def per_class(self) -> list[float | None]:
        """Return the accuracy of each class, the mean over seeds."""
        columns = np.array([cell["metrics"]["per_class_accuracy"] for cell in self.cells], dtype=np.float64)
        with np.errstate(invalid="ignore"):
            return [None if np.isnan(value) else float(value) for value in columns.mean(axis=0)]

    def group_numbers(self) -> dict[tuple[int, ...], GroupNumbers]:
        """Return calibration error and accuracy of each group that all seeds have, the mean over seeds."""
        found = [{tuple(group["classes"]): group for group in cell.get("groups", [])} for cell in self.cells]
        common = [key for key in found[0] if all(key in own for own in found)]
        return {
            key: GroupNumbers(*(float(np.mean([own[key][name] for own in found])) for name in ("ece", "accuracy")))
            for key in common
        }


def write_figures(suite: Suite, results: Results, folder: Path) -> list[Path]:
    """Draw every figure that the finished cells of a suite allow, and return the written files."""
    written: list[Path] = []
    shares: list[tuple[object, ...]] = []
    for block in suite.tables:
        for (dataset, setting), rows in _rows(block, results).items():
            where = _slug(f"{block.name} {dataset} {setting}".strip())
            for drawing in _drawings(rows):
                named = replace(drawing, name=f"{where}-{drawing.name}")
                named.write(folder)
                written.append(folder / f"{named.name}.png")
            shares += [(dataset, setting, row.method, *numbers) for row in rows if (numbers := _shares(row))]
    if shares:
        header = ("dataset", "setting", "method", "classes", "misleading names", "in confused groups")
        write_whole(folder / SHARES, table(header, shares))
        written.append(folder / SHARES)
    return written


def _rows(block: Table, results: Results) -> dict[tuple[str, str], list[Row]]:
    """Return the rows with at least one finished cell that holds what figures need, by dataset and setting."""
    places: dict[tuple[str, str, str], list[Place]] = {}
    for place in block.cells:
        places.setdefault((place.dataset, place.setting, place.method), []).append(place)
    rows: dict[tuple[str, str], list[Row]] = {}
    for (dataset, setting, method), own in places.items():
        contents = [content for place in own if (content := results.read(block.cells[place])) and "classes" in content]
        if contents:
            rows.setdefault((dataset, setting), []).append(Row(method, block.cells[own[0]].settings, contents))
    return rows


def _drawings(rows: Sequence[Row]) -> Iterator[Drawing]:
    """Yield Figures 7 and 15 for pairs that differ in the margin, and Figure 6 for pairs that differ in alignment."""
    zero_shot = next((row for row in rows if row.settings["method"] == "zero_shot"), None)
    for without, with_it in _pairs(rows, "margin"):
        pair = _slug(f"{without.method} {with_it.method}")
        names = with_it.cells[0]["classes"]
        compared = [row for row in (zero_shot, without, with_it) if row is not None]
        numbers = {row.method: row.group_numbers() for row in compared}
        common = [key for key in numbers[with_it.method] if all(key in own for own in numbers.values())]
        if common:
            groups = [" / ".join(names[c] for c in key) for key in common]
            series = {method: [own[key] for key in common] for method, own in numbers.items()}
            drawing = draw_group_comparison(groups, series)
            yield replace(drawing, name=f"figure-7-{pair}")
        series_of_classes = {row.method: row.per_class() for row in (without, with_it)}
        yield replace(draw_extreme_classes(names, series_of_classes), name=f"figure-15-{pair}")
    for without, with_it in _pairs(rows, "concept_alignment"):
        names = list(with_it.cells[0]["classes"])
        found = dict.fromkeys(name for cell in with_it.cells for name in cell["mismatched"] or ())
        if found:
            series_of_classes = {row.method: row.per_class() for row in (without, with_it)}
            chosen = [names.index(name) for name in found]
            drawing = draw_chosen_classes(names, chosen, series_of_classes, "classes with misleading names")
            yield replace(drawing, name=f"figure-6-{_slug(f'{without.method} {with_it.method}')}")


def _pairs(rows: Sequence[Row], key: str) -> Iterator[tuple[Row, Row]]:
    """Yield the rows that differ in one setting only, the one where it is off first."""
    for without in rows:
        for with_it in rows:
            if without.settings.get(key) is False and with_it.settings == {**without.settings, key: True}:
                yield without, with_it


def _shares(row: Row) -> tuple[object, ...]:
    """Return the number of classes, and the shares with misleading names and in confused groups (footnote 2)."""
    cell = row.cells[0]
    n_classes = len(cell["classes"])
    known = [len(own["mismatched"]) / n_classes for own in row.cells if own["mismatched"] is not None]
    confused = np.mean([len({c for group in own["groups"] for c in group["classes"]}) for own in row.cells]) / n_classes
    return (n_classes, f"{np.mean(known):.4f}" if known else "", f"{confused:.4f}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("+", " and ")).strip("-")
