"""The sections of a run's page, each left out where there is nothing to show."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from captune.core.runtime import duration
from captune.report.class_table import class_table
from captune.report.confusion_figures import draw_confidence, draw_groups, draw_heat_map
from captune.report.drawing import Drawing
from captune.report.figures import draw_concentration, draw_extremes, draw_training, extremes
from captune.report.maps import draw_confusion_maps, draw_mismatch_maps
from captune.report.measures import Measures
from captune.report.reading import RunRecord
from captune.results.metrics import Metrics, lowest_mean

MOST_FILES = 300
SECTIONS = (
    ("numbers", "Before and after"),
    ("classes", "Classes"),
    ("mismatch", "Names that mislead"),
    ("confusion", "Classes that collide"),
    ("training", "Training"),
    ("extremes", "Lowest and highest"),
    ("skipped", "Files skipped"),
    ("settings", "Settings"),
)
METRICS = (
    ("accuracy", "Accuracy", "{:.1%}", 1),
    ("balanced_accuracy", "Balanced accuracy", "{:.1%}", 1),
    ("lowest_five", "Mean of the lowest five classes", "{:.1%}", 1),
    ("never", "Classes never predicted", "{:.0f}", -1),
    ("predicted_imbalance", "Imbalance of predictions", "{:.2f}", -1),
    ("ece", "Calibration error (ECE)", "{:.3f}", -1),
)
"""Name in `Metrics`, words, how it is written, and whether more is better."""


def describe_run(run: RunRecord) -> tuple[dict[str, Any], list[Drawing]]:
    """Return what the page of a run shows, and all its figures."""
    measures = Measures(run)
    mismatch, confusion = _mismatch(measures), _confusion(measures)
    content: dict[str, Any] = {
        "title": f"captune report: {run.method} on {run.n_classes} classes",
        "sentence": _sentence(measures),
        "numbers": _numbers(measures),
        "health": _health(measures),
        "classes": class_table(measures),
        "mismatch": mismatch,
        "confusion": confusion,
        "training": draw_training(measures),
        "extremes": _extremes(measures),
        "skipped": _skipped(run),
        "settings": _settings(run),
    }
    has_section = {**content, "numbers": content["numbers"] or content["health"]}
    content["contents"] = [
        (section.replace("_", "-"), name if section != "numbers" or content["numbers"] else "Health check")
        for section, name in SECTIONS
        if has_section[section]
    ]
    drawings = [*(mismatch or {}).get("drawings", ()), *(confusion or {}).get("drawings", ())]
    drawings += (confusion or {}).get("heat_maps", ())
    drawings += [content["training"]] if content["training"] else []
    drawings += [content["extremes"]["drawing"]] if content["extremes"] else []
    return content, drawings


def metric(metrics: Metrics, key: str) -> float:
    """Return one number of the metrics table."""
    return float(len(metrics.never_predicted) if key == "never" else getattr(metrics, key))


def _sentence(measures: Measures) -> str:
    run = measures.run
    aside = f" ({count(len(run.skipped), 'file')} skipped)" if run.skipped else ""
    made = f"a classifier made by {run.method} from {_short(run.card['settings'].get('backbone', '?'))}"
    if run.pseudo_labels is not None:
        made += f" and {count(int(run.pseudo_labels.sum()), 'pseudo-label')}"
    seconds = run.card["environment"].get("seconds")
    text = f"{count(len(run.labels), 'image')}{aside} and {count(run.n_classes, 'class name')} came in; {made} came out"
    text += f" after {duration(seconds)}" if isinstance(seconds, (int, float)) else ""
    if measures.has_truth and run.is_adapted:
        before, after = measures.metrics
        old, new = f"{before.accuracy:.1%}", f"{after.accuracy:.1%}"
        word = "rose" if after.accuracy > before.accuracy else "fell"
        text += f". Accuracy stayed at {new}" if old == new else f". Accuracy {word} from {old} to {new}"
    elif measures.has_truth:
        text += f". Its accuracy is {measures.metrics[1].accuracy:.1%}"
    return f"{text}."


def _short(identifier: str) -> str:
    """Return a backbone's id with the last part only of a path on this machine; the settings show all of it."""
    source, colon, name = identifier.partition(":")
    return f"{source}:{PurePath(name).name}" if colon and PurePath(name).is_absolute() else identifier


def _numbers(measures: Measures) -> dict[str, Any] | None:
    if not measures.has_truth:
        return None
    before, after = measures.metrics
    rows = []
    for key, name, style, sign in METRICS:
        old, new = metric(before, key), metric(after, key)
        row: dict[str, Any] = {"name": name, "values": [style.format(new)]}
        if measures.run.is_adapted:
            change = new - old
            written = f"{100 * change:+.1f} points" if style == "{:.1%}" else style.replace(":", ":+").format(change)
            better = "better" if change * sign > 0 else "worse"
            is_same = style.format(old) == style.format(new)
            row = {"name": name, "values": [style.format(old), style.format(new)]}
            row |= {"change": "same" if is_same else f"{written} ({better})", "judgement": "" if is_same else better}
        rows.append(row)
    n_images, n_all = len(measures.known), len(measures.run.labels)
    notes = []
    if measures.run.card.get("sources", {}).get("labels"):
        notes.append("Some of these images were given to the method with their labels.")
    return {
        "rows": rows,
        "columns": ["before", "after", "change"] if measures.run.is_adapted else ["value"],
        "caption": f"Measured on {n_images:,} labeled images of {n_all:,}",
        "notes": notes,
    }


def _health(measures: Measures) -> dict[str, Any] | None:
    found = measures.run.card.get("health")
    if not found or measures.has_truth:
        return None
    rows = [
        {"name": name, "values": [style.format(found[f"{key}_{when}"]) for when in ("before", "after")]}
        for key, name, style in (
            ("agreement", "Agreement of look-alike images", "{:.2f}"),
            ("explained", "Variance that the classes explain", "{:.2f}"),
            ("classes", "Effective number of predicted classes", "{:.1f}"),
            ("confidence", "Mean confidence", "{:.2f}"),
        )
        if f"{key}_before" in found  # a run of an older captune may lack some
    ]
    rows.append({"name": "Predictions that changed", "values": ["", f"{found['changed']:.0%}"]})
    return {"verdict": found["verdict"], "sentence": found["sentence"], "rows": rows}


def _mismatch(measures: Measures) -> dict[str, Any] | None:
    found = measures.run.alignment
    first = draw_concentration(measures)
    drawings = [*([first] if first else []), *draw_mismatch_maps(measures)]
    if not found and not drawings:
        return None
    sentence = ""
    if found:
        names = [measures.run.names[c] for c in measures.mismatched]
        described = sum(1 for name in names if found.get("descriptions", {}).get(name))
        sentence = tell_misleading(names, measures.run.n_classes, described)
    return {"sentence": sentence, "drawings": drawings, "problems": sorted(found.get("problems", {}).items())}


def tell_misleading(names: Sequence[str], n_classes: int, n_described: int) -> str:
    """Return which names point at the wrong images, and how many of them have descriptions."""
    if not names:
        return "No class name was found to point at the wrong images."
    if len(names) == 1:
        stands = "A description stands for it." if n_described else "No description stands for it."
        return f"1 of {n_classes} names points at the wrong images: {names[0]}. {stands}"
    stands = f"Descriptions stand for {'all' if n_described == len(names) else n_described} of them."
    return f"{len(names)} of {n_classes} names point at the wrong images: {', '.join(names)}. {stands}"


def _confusion(measures: Measures) -> dict[str, Any] | None:
    if "before" not in measures.run.arrays or measures.run.n_classes < 2:
        return None
    has_before, has_truth = measures.run.is_adapted, measures.has_truth
    states = ("before", "after") if has_before else ("after",)
    columns = [("Group", "number"), ("Classes", "text"), ("Closeness", "number")]
    if has_truth:
        columns.append(("Labeled images", "number"))
        columns += [(f"{what} {state}", "number") for what in ("Accuracy", "Local ECE") for state in states]
    groups = []
    for number, group in enumerate(measures.groups, start=1):
        names = ", ".join(measures.run.names[c] for c in group.classes)
        numbers = measures.group_measures(group) if has_truth else {}
        groups.append({"number": number, "names": names, "closeness": group.closeness, **numbers})
    found = [draw_groups(measures), draw_confidence(measures), *draw_confusion_maps(measures)]
    heat_maps = [draw_heat_map(measures, "similarity"), draw_heat_map(measures, "margin")]
    return {
        "columns": columns,
        "groups": groups,
        "has_truth": has_truth,
        "has_before": has_before,
        "drawings": [drawing for drawing in found if drawing],
        "heat_maps": [drawing for drawing in heat_maps if drawing],
    }


def _extremes(measures: Measures) -> dict[str, Any] | None:
    drawing = draw_extremes(measures)
    if drawing is None:
        return None
    before, after = measures.accuracies(after=False), measures.accuracies(after=True)
    n_low = len(extremes(measures)[0])
    means = [lowest_mean(values, n_low) for values in ((before, after) if measures.run.is_adapted else (after,))]
    spread = " before and ".join(f"{mean:.1%}" for mean in means) + (" after" if len(means) > 1 else "")
    named = f"The {n_low} lowest classes have a mean accuracy of {spread}"
    return {"sentence": f"{named}, whichever classes they are at the time.", "drawing": drawing}


def _skipped(run: RunRecord) -> dict[str, Any] | None:
    if not run.skipped:
        return None
    n_files = len(run.skipped)
    rest = f" The first {MOST_FILES} are shown; all are in skipped.csv." if n_files > MOST_FILES else ""
    return {"sentence": f"{count(n_files, 'file')} could not be used.{rest}", "rows": run.skipped[:MOST_FILES]}


def _settings(run: RunRecord) -> dict[str, Any]:
    sources, folder = run.card.get("sources", {}), run.folder.resolve()
    words = ["captune", "adapt", sources.get("images", "IMAGES"), "--classes", sources.get("classes", "CLASSES")]
    words += ["--labels", sources["labels"]] if sources.get("labels") else []
    words += ["--config", str(folder / "settings.yaml"), "--out", f"{folder.name}-again"]
    environment = dict(run.card["environment"])
    versions = environment.pop("versions", {})
    return {
        "command": shlex.join(words),
        "settings": [(key, word(value)) for key, value in run.card["settings"].items()],
        "environment": [(key.replace("_", " "), word(value)) for key, value in {**versions, **environment}.items()],
    }


def word(value: object) -> str:
    """Return a setting or a fact as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {word(entry)}" for key, entry in value.items()) or "–"
    return "–" if value in ("", None) else str(value)


def count(n: int, what: str) -> str:
    """Return a number with its noun, in the plural where it belongs."""
    return f"{n:,} {what}{'' if n == 1 else 'es' if what.endswith('s') else 's'}"


def finite(values: Iterable[float]) -> list[float | None]:
    """Return numbers with None for what is unknown."""
    return [None if np.isnan(value) else float(value) for value in values]
