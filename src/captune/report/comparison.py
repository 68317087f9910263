"""Several runs on one page, methods side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from captune.core.errors import InputError
from captune.core.runtime import duration
from captune.report.drawing import MARKS, SERIES, Drawing, new_figure, shown, style
from captune.report.measures import Measures
from captune.report.reading import RunRecord
from captune.report.sections import METRICS, finite, metric

MOST_NAMED = 60


def compare_runs(runs: Sequence[RunRecord]) -> tuple[dict[str, Any], list[Drawing]]:
    """Return what the page of several runs shows, and its figures."""
    names = _names(runs)
    if any(run.names != runs[0].names for run in runs):
        raise InputError("These runs cannot be compared: they have different classes, or in another order.")
    measures = [Measures(run) for run in runs]
    has_truth = all(one.has_truth for one in measures)
    columns: list[Any] = [one.accuracies(after=True) if has_truth else one.counts(after=True) for one in measures]
    drawing = _draw(names, runs[0].names, columns, "accuracy" if has_truth else "images predicted as the class")
    fingerprints = {run.card["environment"].get("data_fingerprint") for run in runs}
    notes = [] if len(fingerprints) == 1 else ["The runs saw different images: compare their numbers with care."]
    values = [finite(column) if has_truth else column.tolist() for column in columns]
    content = {
        "title": f"captune: {len(runs)} runs compared",
        "sentence": f"{', '.join(names)}: {len(runs)} runs on {runs[0].n_classes} classes, side by side.",
        "notes": notes,
        "contents": [("numbers", "Side by side"), ("classes", "Classes"), ("settings", "Settings that differ")],
        "names": names,
        "numbers": _numbers(measures, has_truth),
        "drawings": [drawing],
        "class_caption": "Accuracy of each class in each run." if has_truth else "Images predicted as each class.",
        "class_columns": [("Class", "text"), *((name, "number") for name in names)],
        "class_rows": [{"name": name, "values": [v[c] for v in values]} for c, name in enumerate(runs[0].names)],
        "class_style": "{:.1%}" if has_truth else "{:d}",
        "settings": _differences(runs),
    }
    return content, [drawing]


def _names(runs: Sequence[RunRecord]) -> list[str]:
    """Return the methods, with the folder where a method occurs more than once and a number where both do."""
    methods = Counter(run.method for run in runs)
    long = [run.method if methods[run.method] == 1 else f"{run.method} ({run.folder.resolve().name})" for run in runs]
    times = Counter(long)
    return [name if times[name] == 1 else f"{name} {number}" for number, name in enumerate(long, start=1)]


def _numbers(measures: Sequence[Measures], has_truth: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    if has_truth:
        for key, name, form, _ in METRICS:
            rows.append({"name": name, "values": [form.format(metric(one.metrics[1], key)) for one in measures]})
        zero_shot = [f"{one.metrics[0].accuracy:.1%}" for one in measures]
        rows.insert(0, {"name": "Accuracy before (zero-shot)", "values": zero_shot})
    else:
        never = [str(int((one.counts(after=True) == 0).sum())) for one in measures]
        rows.append({"name": "Classes never predicted", "values": never})
        checks = [one.run.card.get("health") for one in measures]
        rows.append({"name": "Health check", "values": [check["verdict"] if check else "–" for check in checks]})
        agreement = [f"{check['agreement_after']:.2f}" if check else "–" for check in checks]
        rows.append({"name": "Agreement of look-alike images", "values": agreement})
    rows.append({"name": "Mean confidence", "values": [f"{one.run.confidence.mean():.2f}" for one in measures]})
    labels = [one.run.pseudo_labels for one in measures]
    rows.append({"name": "Pseudo-labels", "values": ["–" if one is None else f"{int(one.sum()):,}" for one in labels]})
    rows.append({"name": "Images", "values": [f"{len(one.run.labels):,}" for one in measures]})
    seconds = [one.run.card["environment"].get("seconds") for one in measures]
    rows.append({"name": "Time", "values": ["–" if one is None else duration(one) for one in seconds]})
    return rows


def _draw(names: Sequence[str], classes: Sequence[str], columns: Sequence[Any], what: str) -> Drawing:
    """Draw all classes, ordered by the first run, with a mark for each run."""
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
    note = f"Each class in each run ({what}), in the order of {names[0]}."
    return Drawing("compared-classes", note, f"Mean over classes: {means}", figure, ("class", *names), rows)


def _differences(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    keys = list(dict.fromkeys(key for run in runs for key in run.card["settings"]))
    rows = [{"name": key, "values": [str(run.card["settings"].get(key, "–")) for run in runs]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1]
