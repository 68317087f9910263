"""The comparison of several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from captune.core.errors import InputError
from captune.core.progress import duration
from captune.report.class_table import Column, known
from captune.report.compared import GroupNumbers, draw_extreme_classes, draw_group_comparison
from captune.report.drawing import MARKS, SERIES, Drawing, new_figure, shown, style
from captune.report.measures import Measures
from captune.report.sections import METRICS, metric
from captune.results.reading import RunRecord

MOST_NAMED = 60


def compare_runs(runs: Sequence[RunRecord]) -> tuple[dict[str, Any], list[Drawing]]:
    """Return the content of the comparison page, and its figures."""
    names = _names(runs)
    if any(run.names != runs[0].names for run in runs):
        raise InputError("These runs cannot be compared: their classes, or the order of their classes, differ.")
    measures = [Measures(run) for run in runs]
    has_truth = all(one.has_truth for one in measures)
    values: list[Any] = [one.accuracies(after=True) if has_truth else one.counts(after=True) for one in measures]
    drawings = [_draw(names, runs[0].names, values, "accuracy" if has_truth else "images predicted as the class")]
    if has_truth:
        series = {name: column.tolist() for name, column in zip(names, values, strict=True)}
        drawings.append(draw_extreme_classes(runs[0].names, series))
        groups = _draw_groups(names, measures)
        drawings += [groups] if groups else []
    fingerprints = {run.card["environment"].get("data_fingerprint") for run in runs}
    columns = [
        Column(name, known(column), style="{:.1%}") if has_truth else Column(name, column.tolist())
        for name, column in zip(names, values, strict=True)
    ]
    content = {
        "title": f"captune: {len(runs)} runs compared",
        "sentence": f"{', '.join(names)}: {len(runs)} runs on {runs[0].n_classes} classes.",
        "notes": ["The runs used different images: compare them with care."] if len(fingerprints) > 1 else [],
        "contents": [("numbers", "Side by side"), ("classes", "Classes"), ("settings", "Settings that differ")],
        "names": names,
        "numbers": _numbers(measures, has_truth),
        "drawings": drawings,
        "class_caption": "Accuracy of each class in each run" if has_truth else "Images predicted as each class",
        "classes": [Column("Class", runs[0].names, "name"), *columns],
        "settings": _differences(runs),
    }
    return content, drawings


def _draw_groups(names: Sequence[str], measures: Sequence[Measures]) -> Drawing | None:
    """Draw the calibration and accuracy of the groups that zero-shot confuses, for zero-shot and every run."""
    first = measures[0]
    measured = [[one.group_measures(group) for one in measures] for group in first.start_groups]
    found = [
        (group, numbers)
        for group, numbers in zip(first.start_groups, measured, strict=True)
        if all(own["n_images"] for own in numbers)
    ]
    if not found:
        return None
    groups = [" / ".join(first.run.names[c] for c in group.classes) for group, _ in found]
    series = {"zero-shot": [GroupNumbers(n[0]["ece_before"], n[0]["accuracy_before"]) for _, n in found]}
    for i, name in enumerate(names):
        series[name] = [GroupNumbers(n[i]["ece_after"], n[i]["accuracy_after"]) for _, n in found]
    return draw_group_comparison(groups, series)


def _names(runs: Sequence[RunRecord]) -> list[str]:
    """Return the method of each run, with its folder and a number where needed to tell runs apart."""
    methods = Counter(run.method for run in runs)
    long = [run.method if methods[run.method] == 1 else f"{run.method} ({run.folder.resolve().name})" for run in runs]
    times = Counter(long)
    return [name if times[name] == 1 else f"{name} {number}" for number, name in enumerate(long, start=1)]


def _numbers(measures: Sequence[Measures], has_truth: bool) -> list[dict[str, Any]]:
    rows: dict[str, list[str]] = {}
    if has_truth:
        rows["Accuracy before (zero-shot)"] = [f"{one.metrics[0].accuracy:.1%}" for one in measures]
        for key, name, style, _ in METRICS:
            rows[name] = [style.format(metric(one.metrics[1], key)) for one in measures]
    else:
        rows["Classes never predicted"] = [str(int((one.counts(after=True) == 0).sum())) for one in measures]
        checks = [one.run.card.get("health") for one in measures]
        rows["Health check"] = [check["verdict"] if check else "–" for check in checks]
        rows["Agreement between similar images"] = [f"{c['agreement_after']:.2f}" if c else "–" for c in checks]
    rows["Mean confidence"] = [f"{one.run.confidence.mean():.2f}" for one in measures]
    labels = [one.run.pseudo_labels for one in measures]
    rows["Pseudo-labels"] = ["–" if one is None else f"{int(one.sum()):,}" for one in labels]
    rows["Images"] = [f"{len(one.run.labels):,}" for one in measures]
    seconds = [one.run.card["environment"].get("seconds") for one in measures]
    rows["Time"] = ["–" if one is None else duration(one) for one in seconds]
    return [{"name": name, "values": values} for name, values in rows.items()]


def _draw(names: Sequence[str], classes: Sequence[str], columns: Sequence[Any], what: str) -> Drawing:
    """Draw the value of each class in each run, ordered by the first run."""
    order = np.argsort(columns[0], kind="stable")
    with style():
        figure, (axis,) = new_figure(7.6, 3.6)
        for number, (name, values) in enumerate(zip(names, columns, strict=True)):
            mark, color = MARKS[number % len(MARKS)], SERIES[number % len(SERIES)]
            axis.plot(np.asarray(values)[order], mark, color=color, markersize=4, label=shown(name))
        axis.set(ylabel=what, ylim=(0, None))
        if len(classes) <= MOST_NAMED:
            axis.set_xticks(range(len(classes)), [shown(classes[c]) for c in order], rotation=90, fontsize=7)
        axis.grid(axis="y", alpha=0.3)
        figure.legend(loc="outside upper center", ncols=min(4, len(names)))
    rows = [(classes[c], *(round(float(column[c]), 4) for column in columns)) for c in order]
    means = ", ".join(f"{name} {np.nanmean(values):.3g}" for name, values in zip(names, columns, strict=True))
    note = f"The {what} for each class and run, sorted by {names[0]}."
    return Drawing("compared-classes", note, f"Mean over classes: {means}", figure, ("class", *names), rows)


def _differences(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    keys = list(dict.fromkeys(key for run in runs for key in run.card["settings"]))
    rows = [{"name": key, "values": [str(run.card["settings"].get(key, "–")) for run in runs]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1]
