"""The sections of a run's report; a section without data is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from captune.report.class_table import Column, capped, changes, class_columns, hesitations, mistakes
from captune.report.drawing import Drawing, draw_concentration, draw_confidence, draw_training
from captune.report.measures import MOST_COMPARED, Measures, group_numbers
from captune.report.pictures import class_galleries, image_map, unsure_pictures
from captune.report.summary import chosen_method, count, describe_top, repeating
from captune.results.metrics import Metrics
from captune.results.run import Run
from captune.review.estimate import FEWEST_CHECKS

MOST_FILES = 300
MOST_GROUPS = 50
SECTIONS = (
    ("numbers", "Before and after"),
    ("map", "Map"),
    ("mistakes", "Mistakes"),
    ("hesitations", "Close calls"),
    ("changes", "What changed"),
    ("unsure", "Least confident"),
    ("classes", "Classes"),
    ("mismatch", "Misleading names"),
    ("confusion", "Confused classes"),
    ("skipped", "Skipped images"),
    ("training", "Training"),
    ("settings", "Settings"),
)
METRICS = (
    ("accuracy", "Accuracy", "{:.1%}", 1, "share of the labeled images that get the right class"),
    ("balanced_accuracy", "Balanced accuracy", "{:.1%}", 1, "the same, with every class counting equally"),
    ("lowest_five", "Mean of the lowest five classes", "{:.1%}", 1, "right images in the five classes that do worst"),
    ("never", "Classes never predicted", "{:.0f}", -1, "classes that no image got"),
    ("predicted_imbalance", "Imbalance of predictions", "{:.2f}", -1, "largest class divided by the mean; 1 is even"),
    ("ece", "Calibration error (ECE)", "{:.3f}", -1, "how far confidences are from the share that is right"),
)
"""Name in `Metrics`, title, number format, 1 if higher is better, and what it means."""

WHEN = ("before", "after")
NEUTRAL = "compared with a grouping of the images that does not know the adaptation"
HEALTH = (
    ("agreement", "Agreement between similar images", "{:.2f}", "how often they share a class; 0 is chance, 1 always"),
    ("classes", "Effective number of predicted classes", "{:.1f}", "classes in use, large ones counting more"),
    ("confidence", "Mean confidence", "{:.2f}", "mean probability of the predicted class, right or wrong"),
)


def describe_run(run: Run) -> tuple[dict[str, Any], list[Drawing]]:
    """Return the content of a run's page, and all its figures."""
    measures = Measures(run)
    what = "audit" if run.method == "audit" else f"report: {chosen_method(run)}"
    columns, left_out = capped(class_columns(measures), measures.counts(after=True))
    skipped, clusters = run.skipped_files[:MOST_FILES], draw_concentration(measures)
    files, reasons = ([entry[i] for entry in skipped] for i in range(2))
    content: dict[str, Any] = {
        "title": f"captune {what} on {count(run.n_classes, 'class')}",
        "run": run,
        "measures": measures,
        "method": chosen_method(run),
        "fewest_checks": FEWEST_CHECKS,
        "top": describe_top(measures),
        "numbers": _numbers(measures),
        "health": _health(measures),
        "map": image_map(measures),
        "mistakes": mistakes(measures),
        "hesitations": None if measures.has_truth or run.is_adapted else hesitations(measures),
        "changes": changes(measures),
        "unsure": unsure_pictures(measures),
        "classes": columns,
        "galleries": class_galleries(measures),
        "left_out": left_out,
        "mismatch": {"drawing": clusters} if run.alignment or clusters else None,
        "confusion": _confusion(measures),
        "training": draw_training(measures),
        "skipped": [Column("File", files, "name"), Column("Reason", reasons, "text")] if files else None,
        "settings": _settings(run),
    }
    found_first = ("numbers", "mismatch", "confusion") if run.method == "audit" else ()
    order = sorted(SECTIONS, key=lambda entry: entry[0] not in found_first)
    content["contents"] = [entry for entry in order if content.get(entry[0])]
    figures = [(content[name] or {}).get("drawing") for name in ("mismatch", "confusion")]
    return content, [figure for figure in (*figures, content["training"]) if figure]


def metric(metrics: Metrics, key: str) -> float:
    """Return a number of the metrics table."""
    return float(len(metrics.never_predicted) if key == "never" else getattr(metrics, key))


def _numbers(measures: Measures) -> dict[str, Any] | None:
    if not measures.has_truth:
        return None
    is_adapted = measures.run.is_adapted
    rows = []
    for key, name, style, sign, meaning in METRICS:
        old, new = (metric(metrics, key) for metrics in measures.metrics)
        row: dict[str, Any] = {"name": name, "note": meaning, "values": [style.format(new)]}
        if is_adapted:
            change = new - old
            written = f"{100 * change:+.1f} points" if style == "{:.1%}" else style.replace(":", ":+").format(change)
            judgement = "better" if change * sign > 0 else "worse"
            row["values"].insert(0, style.format(old))
            row |= {"change": f"{written} ({judgement})", "judgement": judgement}
            if style.format(old) == style.format(new):
                row |= {"change": "same", "judgement": ""}
        rows.append(row)
    for title, share in measures.first_labels_precision().items():
        rows.append({"name": f"First pseudo-labels right {title}", "note": "", "values": [f"{share:.1%}"]})
    return {
        "rows": rows,
        "columns": ["before", "after", "change"] if is_adapted else ["value"],
        "caption": f"Measured on {len(measures.known):,} labeled images of {len(measures.run.labels):,}",
    }


def _health(measures: Measures) -> list[dict[str, Any]] | None:
    found = measures.run.health
    if not found or measures.has_truth:
        return None
    change = f"{100 * found['expected_change']:+.1f} points"
    return [
        {"name": "Estimated change of accuracy", "note": NEUTRAL, "values": ["", change]},
        *(
            {"name": name, "note": note, "values": [style.format(found[f"{key}_{when}"]) for when in WHEN]}
            for key, name, style, note in HEALTH
        ),
        {"name": "Predictions that changed", "note": "", "values": ["", f"{found['changed']:.0%}"]},
    ]


def _confusion(measures: Measures) -> dict[str, Any] | None:
    run, groups = measures.run, measures.groups
    if "before" not in run.arrays or run.n_classes < 2:
        return None
    columns = [
        Column("Group", range(1, len(groups) + 1)),
        Column("Classes", [", ".join(run.names[c] for c in group.classes) for group in groups], "name"),
        Column("Similarity", [group.closeness for group in groups], style="{:.1f}"),
    ]
    if measures.has_truth:
        parts = zip(WHEN, measures.labeled, strict=True)
        found = {when: [group_numbers(group, part, measures.truth) for group in groups] for when, part in parts}
        columns.append(Column("Labeled images", [numbers["images"] for numbers in found["after"]]))
        for title, key, style in (("Accuracy", "accuracy", "{:.1%}"), ("Local ECE", "ece", "{:.3f}")):
            for when in WHEN if run.is_adapted else WHEN[1:]:
                columns.append(Column(f"{title} {when}", [numbers[key] for numbers in found[when]], style=style))
    columns = [replace(column, values=column.values[:MOST_GROUPS]) for column in columns]
    notes = [f"The {MOST_GROUPS} most similar of {len(groups):,} groups."] if len(groups) > MOST_GROUPS else []
    if run.n_classes > MOST_COMPARED:
        notes.append(f"Groups were looked for among the {MOST_COMPARED:,} classes with the most images.")
    return {"columns": columns, "drawing": draw_confidence(measures), "note": " ".join(notes)}


def _settings(run: Run) -> dict[str, Any]:
    folder = run.folder.resolve()
    environment = dict(run.card["environment"])
    versions = environment.pop("versions", {})
    return {
        "command": repeating(run, folder / "settings.yaml", f"{folder.name}-again"),
        "settings": [(key, as_text(value)) for key, value in run.card["settings"].items()],
        "environment": [(key.replace("_", " "), as_text(value)) for key, value in {**versions, **environment}.items()],
    }


def as_text(value: object) -> str:
    """Return a setting as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {as_text(entry)}" for key, entry in value.items()) or "–"
    return "–" if value in ("", None) else str(value)
