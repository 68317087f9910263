"""The paper's figures from finished cells: pairs and rows of methods that differ in one setting only, times, counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from captune.benchmark.tables import Row
from captune.core.files import table, write_whole
from captune.report.drawing import GREY, SERIES, Drawing, new_figure, shown, style

SHARES = "class-shares.csv"
SHOWN = 10
"""Most groups in Figure 7, and most classes in each half of Figure 15."""
COLORS = (GREY, *SERIES)
CURVES = (("figure-8", "margin_scale", "margin scale m"), ("figure-9", "unlabeled_share", "share of unlabeled images"))
"""Figures that show the score by one setting."""


class Panel(NamedTuple):
    """One pair of axes: series of values at the same ticks."""

    ticks: Sequence[str]
    series: Mapping[str, Sequence[float | None] | NDArray[np.float64]]


def write_figures(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw every figure that the finished cells of a suite allow, and return the written files."""
    rows, written = [row for row in rows if row.cells], list[Path]()
    for drawing in draw_all(rows):
        drawing.write(folder)
        written.append(folder / f"{drawing.name}.png")
    if rows:
        header = ("dataset", "setting", "method", "classes", "misleading names", "in confused groups")
        write_whole(folder / SHARES, table(header, map(_shares, rows)))
        written.append(folder / SHARES)
    return written


def draw_all(rows: Sequence[Row]) -> Iterator[Drawing]:
    """Yield Figures 8 and 9 of all rows, 13 and 14 of each table and setting, and 6, 7 and 15 of pairs of rows."""
    for name, setting, title in CURVES:
        if panels := _curves(rows, setting):
            yield draw(name, f"Test score by {title}.", (setting, "test score, %"), panels, has_lines=True)
    for where, own in _grouped(rows, lambda row: f"{row.table} {row.setting}"):
        methods, datasets = (list(dict.fromkeys(getattr(row, axis) for row in own)) for axis in ("method", "dataset"))
        if len({row.settings["method"] for row in own} - {"zero_shot"}) > 1:
            minutes = {(row.dataset, row.method): row.mean("minutes") for row in own}
            times = {dataset: [minutes.get((dataset, method)) for method in methods] for dataset in datasets}
            note = "Minutes of each method, without embedding."
            yield draw(f"{where} figure 13", note, ("method", "minutes"), {"": Panel(methods, times)})
        found = {(row.method, row.dataset): row.mean("mismatched") for row in own}
        counts = {method: [found.get((method, dataset)) for dataset in datasets] for method in methods}
        counts = {method: values for method, values in counts.items() if set(values) != {None}}
        if counts:
            note = "Classes with misleading names."
            yield draw(f"{where} figure 14", note, ("dataset", "classes"), {"": Panel(datasets, counts)})
    for where, own in _grouped(rows, lambda row: f"{row.table} {row.dataset} {row.setting}"):
        yield from _pair_drawings(where, own)


def _curves(rows: Sequence[Row], setting: str) -> dict[str, Panel]:
    """Return a panel for each dataset, with a series of scores for rows that differ in one setting only."""
    panels: dict[str, Panel] = {}
    with_it = [row for row in rows if setting in row.settings]
    for dataset, of_dataset in _grouped(with_it, lambda row: row.dataset):
        curves: dict[str, dict[float, float | None]] = {}
        for _, own in _grouped(of_dataset, lambda row: json.dumps([row.setting, {**row.settings, setting: 0}])):
            curve = {float(row.settings[setting]): row.mean("score") for row in own}
            if len(curve) > 1:
                title = f"{own[0].settings['method']} {own[0].setting.upper()}"
                curves[title if title not in curves else f"{title}, {own[0].method}"] = curve
        ticks = sorted({value for curve in curves.values() for value in curve})
        series = {title: [curve.get(value) for value in ticks] for title, curve in curves.items()}
        if series:
            panels[dataset] = Panel([f"{value:g}" for value in ticks], series)
    return panels


def _pair_drawings(where: str, rows: Sequence[Row]) -> Iterator[Drawing]:
    """Yield Figures 7 and 15 of pairs that differ in the margin, and Figure 6 of pairs that differ in alignment."""
    zero_shot = [row for row in rows if row.settings["method"] == "zero_shot"][:1]
    for without, with_it in _pairs(rows, "margin"):
        pair = f"{without.method} {with_it.method}"
        names, panels = with_it.cells[0]["classes"], {}
        for key, title in (("ece", "local calibration error (ECE)"), ("accuracy", "accuracy")):
            numbers = {row.method: _group_numbers(row, key) for row in (*zero_shot, without, with_it)}
            common = [group for group in numbers[with_it.method] if all(group in own for own in numbers.values())]
            groups = [" / ".join(names[c] for c in group) for group in common[:SHOWN]]
            panels[title] = Panel(groups, {m: [own[group] for group in common[:SHOWN]] for m, own in numbers.items()})
        if groups:
            note = "Local calibration error and accuracy of classes that zero-shot confuses."
            yield draw(f"{where} figure 7 {pair}", note, ("group", ""), panels)
        first = _per_class(without)
        order = [int(c) for c in np.argsort(first, kind="stable") if not np.isnan(first[c])]
        n_low = min(SHOWN, (len(order) + 1) // 2)
        halves = {"lowest": order[:n_low], "highest": order[::-1][: min(SHOWN, len(order) - n_low)]}
        panels = {f"{half} ({without.method})": _of_classes(own, without, with_it) for half, own in halves.items()}
        note = f"Accuracy of the classes that are lowest and highest with {without.method}."
        yield draw(f"{where} figure 15 {pair}", note, ("class", "accuracy"), panels)
    for without, with_it in _pairs(rows, "concept_alignment"):
        found = dict.fromkeys(name for cell in with_it.cells for name in cell["mismatched"] or ())
        if found:
            chosen = [list(with_it.cells[0]["classes"]).index(name) for name in found]
            panels = {"classes with misleading names": _of_classes(chosen, without, with_it)}
            name = f"{where} figure 6 {without.method} {with_it.method}"
            yield draw(name, "Accuracy of classes with misleading names.", ("class", "accuracy"), panels)


def _per_class(row: Row) -> NDArray[np.float64]:
    """Return the accuracy of each class, the mean over seeds, nan without test images."""
    return np.array([cell["metrics"]["per_class_accuracy"] for cell in row.cells], dtype=np.float64).mean(axis=0)


def _of_classes(chosen: Sequence[int], *rows: Row) -> Panel:
    names = rows[0].cells[0]["classes"]
    return Panel([names[c] for c in chosen], {row.method: _per_class(row)[list(chosen)] for row in rows})


def _group_numbers(row: Row, name: str) -> dict[tuple[int, ...], float]:
    """Return `ece` or `accuracy` of each confused group that all seeds have, the mean over seeds."""
    found = [{tuple(group["classes"]): group[name] for group in cell["groups"]} for cell in row.cells]
    common = [group for group in found[0] if all(group in own for own in found)]
    return {group: float(np.mean([own[group] for own in found])) for group in common}


def _pairs(rows: Sequence[Row], key: str) -> Iterator[tuple[Row, Row]]:
    """Yield the rows that differ in one setting only, the one where it is off first."""
    for without in rows:
        for with_it in rows:
            if without.settings.get(key) is False and with_it.settings == {**without.settings, key: True}:
                yield without, with_it


def draw(
    name: str, note: str, axes_of: tuple[str, str], panels: Mapping[str, Panel], has_lines: bool = False
) -> Drawing:
    """Return panels of bars or lines with one legend; `axes_of` names what the ticks and the values are."""
    labels = list(dict.fromkeys(label for panel in panels.values() for label in panel.series))
    width, rows, means = 0.8 / len(labels), list[tuple[object, ...]](), list[str]()
    with style():
        figure, axes = new_figure(3.8 * len(panels), 3.2, columns=len(panels))
        for axis, (title, panel) in zip(axes, panels.items(), strict=True):
            at, none = np.arange(len(panel.ticks)), [None] * len(panel.ticks)
            columns = [np.array(panel.series.get(label, none), dtype=np.float64) for label in labels]
            for number, (label, values) in enumerate(zip(labels, columns, strict=True)):
                mark: dict[str, Any] = {"color": COLORS[number % len(COLORS)], "label": shown(label)}
                if has_lines:
                    axis.plot(at, values, marker="o", **mark)
                else:
                    axis.bar(at + (number - (len(labels) - 1) / 2) * width, values, 0.95 * width, **mark)
            axis.set(title=title, ylabel=axes_of[1], xlabel=axes_of[0] if has_lines else "")
            axis.set_xticks(at, [shown(tick) for tick in panel.ticks], rotation=0 if has_lines else 90, fontsize=7)
            for tick, *own in zip(panel.ticks, *columns, strict=True):
                rows.append((title, tick, *("" if np.isnan(value) else round(float(value), 4) for value in own)))
            known = ((label, own) for label, own in zip(labels, columns, strict=True) if not np.isnan(own).all())
            means.append(f"{title}: " + ", ".join(f"{label} {np.nanmean(own):.3f}" for label, own in known))
        handles = {label: mark for axis in axes for mark, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=min(4, len(handles)))
    name = re.sub(r"[^a-z0-9]+", "-", name.lower().replace("+", " and ")).strip("-")
    return Drawing(name, note, f"Means, {'; '.join(means)}", figure, ("panel", axes_of[0], *labels), rows)


def _shares(row: Row) -> tuple[object, ...]:
    """Return the number of classes, and the shares with misleading names and in confused groups (footnote 2)."""
    n_classes, known = len(row.cells[0]["classes"]), row.mean("mismatched")
    confused = np.mean([len({c for group in own["groups"] for c in group["classes"]}) for own in row.cells])
    shares = "" if known is None else f"{known / n_classes:.4f}", f"{confused / n_classes:.4f}"
    return row.dataset, row.setting, row.method, n_classes, *shares


def _grouped(rows: Sequence[Row], key: Callable[[Row], str]) -> Iterator[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    yield from groups.items()
