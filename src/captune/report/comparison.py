"""The comparison of several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from captune.core.arrays import Ints
from captune.core.errors import InputError
from captune.core.runtime import duration
from captune.report.class_table import Column, Exchange, capped, exchange
from captune.report.measures import Measures
from captune.report.sections import METRICS, as_text, metric
from captune.results.run import Run

MOST_MATRICES = 3
FIRST = ("method", "preset", "backbone", "describer", "describe", "template")
"""Settings that are named first, because they change results most."""


def compare_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the content of the comparison page."""
    names = _names(runs)
    if any(run.names != runs[0].names for run in runs):
        raise InputError("These runs cannot be compared: their classes, or the order of their classes, differ.")
    measures = [Measures(run) for run in runs]
    has_truth, same = all(one.has_truth for one in measures), _same_images(runs)
    columns = [Column("Class", runs[0].names, "name")]
    for name, one in zip(names, measures, strict=True):
        counts = one.counts(after=True).tolist()
        accuracies = one.metrics[1].per_class_accuracy if has_truth else counts
        columns.append(Column(name, accuracies, style="{:.1%}" if has_truth else "{:d}"))
    columns, left_out = capped(columns, np.sum([one.counts(after=True) for one in measures], axis=0))
    differences, settings = _differences(measures)
    labels = [run.labels[rows] for run, rows in zip(runs, same, strict=True)] if len(same[0]) else []
    shares = [
        {"name": name, "values": [f"{(own != other).mean():.1%}" for other in labels]}
        for name, own in zip(names, labels, strict=False)
    ]
    sections = [("differences", "What differs"), ("numbers", "Side by side")]
    sections += [("disagreements", "Disagreements")] if shares else []
    return {
        "title": f"captune: {len(runs)} runs compared",
        "accuracies": [one.metrics[1].accuracy for one in measures] if has_truth else [],
        "n_common": len(same[0]),
        "agreement": (np.stack(labels) == labels[0]).all(axis=0).mean() if labels else 0.0,
        "is_same_data": len({run.environment.get("data_fingerprint") for run in runs}) == 1,
        "were_trained_with_labels": any(run.sources.get("labels") for run in runs),
        "contents": [*sections, ("classes", "Classes")],
        "n_classes": f"{runs[0].n_classes:,}",
        "names": names,
        "differences": differences,
        "numbers": _numbers(measures, has_truth),
        "shares": shares,
        "disagreements": _disagreements(names, runs, same),
        "more_runs": f"Shown is the first run with the next {MOST_MATRICES}." if len(runs) > MOST_MATRICES + 1 else "",
        "class_caption": "Accuracy of each class in each run" if has_truth else "Images predicted as each class",
        "classes": columns,
        "left_out": left_out,
        "settings": settings,
    }


def _same_images(runs: Sequence[Run]) -> list[Ints]:
    """Return the rows, in each run, of the images that all runs have, in the same order."""
    places = [{run.readable.name(row): row for row in range(len(run.labels))} for run in runs]
    common = [name for name in places[0] if all(name in place for place in places[1:])]
    return [np.asarray([place[name] for name in common], dtype=np.int64) for place in places]


def _disagreements(names: Sequence[str], runs: Sequence[Run], same: Sequence[Ints]) -> list[Exchange]:
    """Return the classes about which the first run and the others disagree, with pictures."""
    found = []
    for number in range(1, min(len(runs), MOST_MATRICES + 1)):
        other = runs[number]
        place = dict(zip(same[0].tolist(), same[number].tolist(), strict=True))

        def words(row: int, other: Run = other, place: dict[int, int] = place) -> str:
            return f"confidence {runs[0].confidence[row]:.0%} and {other.confidence[place[row]]:.0%}"

        labels = runs[0].labels[same[0]], other.labels[same[number]]
        found.append(exchange(runs[0], same[0], *labels, (names[0], names[number]), f"disagree-{number}", words))
    return [one for one in found if one]


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the folder of each run, with its parent and a number where needed to tell runs apart."""
    folders = [run.folder.resolve() for run in runs]
    short = Counter(folder.name for folder in folders)
    long = [folder.name if short[folder.name] == 1 else f"{folder.parent.name}/{folder.name}" for folder in folders]
    times = Counter(long)
    return [name if times[name] == 1 else f"{name} ({number})" for number, name in enumerate(long, start=1)]


def _numbers(measures: Sequence[Measures], has_truth: bool) -> list[dict[str, Any]]:
    rows: dict[str, list[str]] = {}
    if has_truth:
        rows["Accuracy before (zero-shot)"] = [f"{one.metrics[0].accuracy:.1%}" for one in measures]
        for key, name, style, *_ in METRICS:
            rows[name] = [style.format(metric(one.metrics[1], key)) for one in measures]
    else:
        rows["Classes never predicted"] = [str(int((one.counts(after=True) == 0).sum())) for one in measures]
        checks = [one.run.health for one in measures]
        rows["Health check"] = [check["verdict"] if check else "–" for check in checks]
        rows["Agreement between similar images"] = [f"{c['agreement_after']:.2f}" if c else "–" for c in checks]
    rows["Mean confidence"] = [f"{one.run.confidence.mean():.2f}" for one in measures]
    labels = [one.run.pseudo_labels for one in measures]
    rows["Pseudo-labels"] = ["–" if one is None else f"{int(one.sum()):,}" for one in labels]
    rows["Images"] = [f"{len(one.run.labels):,}" for one in measures]
    seconds = [one.run.environment.get("seconds") for one in measures]
    rows["Time"] = ["–" if one is None else duration(one) for one in seconds]
    notes = {name: meaning for _, name, *_, meaning in METRICS}
    return [{"name": name, "note": notes.get(name, ""), "values": values} for name, values in rows.items()]


def _differences(measures: Sequence[Measures]) -> list[list[dict[str, Any]]]:
    """Return what differs: first images, labels, descriptions and method, then all other settings."""
    runs = [one.run for one in measures]
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    others = {key: [as_text(run.settings.get(key)) for run in runs] for key in keys}
    first: dict[str, list[str]] = {
        "Labels for training": [str(run.sources.get("labels") or "none") for run in runs],
        "Answers of people": [as_text(one.review.get("n_labels")) for one in measures],
        "Classes with descriptions": [f"{len(one.described):,}" for one in measures],
        "Images": [str(run.sources.get("images", "–")) for run in runs],
        "Result that was kept": [run.kept.replace("_", "-") for run in runs],
        **{key.capitalize(): others.pop(key) for key in FIRST if key in others},
    }
    return [
        [{"name": name, "values": values} for name, values in rows.items() if len(set(values)) > 1]
        for rows in (first, others)
    ]
