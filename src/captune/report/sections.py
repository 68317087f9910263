"""The sections of a run's report; a section without data is left out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from captune.core.progress import duration
from captune.report.class_table import Column, class_columns
from captune.report.confusion_figures import draw_confidence, draw_groups, draw_heat_map
from captune.report.drawing import Drawing
from captune.report.figures import draw_concentration, draw_extremes, draw_training, extremes
from captune.report.maps import draw_confusion_map, draw_mismatch_maps
from captune.report.measures import Measures
from captune.results.metrics import Metrics, lowest_mean
from captune.results.reading import RunRecord
from captune.review.estimate import describe_accuracy

MOST_FILES = 300
SECTIONS = (
    ("next-steps", "What to do next"),
    ("numbers", "Before and after"),
    ("classes", "Classes"),
    ("mismatch", "Misleading names"),
    ("confusion", "Confused classes"),
    ("training", "Training"),
    ("extremes", "Lowest and highest"),
    ("skipped", "Skipped images"),
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
"""Name in `Metrics`, title, number format, and 1 if higher is better."""

NO_PICTURES = {
    "embeddings": "This run was made from embeddings, so there are no thumbnails.",
    "memory": "The images of this run were in memory and are not part of the run folder, so there are no thumbnails.",
}
"""Why a report shows no thumbnails, by the source of the images."""


def describe_run(run: RunRecord) -> tuple[dict[str, Any], list[Drawing]]:
    """Return the content of a run's page, and all its figures."""
    measures = Measures(run)
    columns = class_columns(measures)
    has_pictures = any(column.kind == "pictures" for column in columns)
    content: dict[str, Any] = {
        "title": f"captune report: {run.method} on {run.n_classes} classes",
        "sentence": _summary(measures),
        "is_adapted": run.is_adapted,
        "has_alignment": bool(run.alignment),
        "numbers": _numbers(measures),
        "health": _health(measures),
        "accuracy": describe_accuracy(run.card.get("review", {}).get("accuracy"), str(run.folder)),
        "classes": columns,
        "no_pictures": "" if has_pictures else NO_PICTURES.get(run.card.get("image_source", "files")),
        "mismatch": _mismatch(measures),
        "confusion": _confusion(measures),
        "training": draw_training(measures),
        "extremes": _extremes(measures),
        "skipped": skipped_section(run.skipped, "skipped.csv"),
        "settings": _settings(run),
    }
    has_numbers = bool(content["numbers"])
    content["contents"] = contents(
        {**content, "numbers": content["numbers"] or content["health"]},
        numbers="Before and after" if has_numbers else "Health check",
    )
    figures = [*(content["mismatch"] or {}).get("drawings", ()), *(content["confusion"] or {}).get("drawings", ())]
    figures += [content["training"], (content["extremes"] or {}).get("drawing")]
    return content, [figure for figure in figures if figure]


def contents(content: Mapping[str, Any], **titles: str) -> list[tuple[str, str]]:
    """Return the ids and titles of the sections that a page has."""
    ids = ((section, titles.get(section, title)) for section, title in SECTIONS)
    return [(section, title) for section, title in ids if content.get(section.replace("-", "_"))]


def metric(metrics: Metrics, key: str) -> float:
    """Return a number of the metrics table."""
    return float(len(metrics.never_predicted) if key == "never" else getattr(metrics, key))


def _summary(measures: Measures) -> str:
    run = measures.run
    backbone = _short(run.card["settings"].get("backbone", "?"))
    skipped = f" ({count(len(run.skipped), 'file')} skipped)" if run.skipped else ""
    inputs = f"{count(len(run.labels), 'image')}{skipped} and {count(run.n_classes, 'class name')}"
    text = f"The method {run.method} made a classifier from {backbone}, {inputs}"
    if run.pseudo_labels is not None:
        text += f", using {count(int(run.pseudo_labels.sum()), 'pseudo-label')}"
    seconds = run.card["environment"].get("seconds")
    text += f", in {duration(seconds)}" if isinstance(seconds, (int, float)) else ""
    if measures.has_truth and run.is_adapted:
        before, after = measures.metrics
        old, new = f"{before.accuracy:.1%}", f"{after.accuracy:.1%}"
        verb = "rose" if after.accuracy > before.accuracy else "fell"
        text += f". Accuracy stayed at {new}" if old == new else f". Accuracy {verb} from {old} to {new}"
    elif measures.has_truth:
        text += f". Its accuracy is {measures.metrics[1].accuracy:.1%}"
    return f"{text}."


def _short(identifier: str) -> str:
    """Return a backbone's id, with only the last part of an absolute path."""
    source, colon, name = identifier.partition(":")
    return f"{source}:{PurePath(name).name}" if colon and PurePath(name).is_absolute() else identifier


def _numbers(measures: Measures) -> dict[str, Any] | None:
    if not measures.has_truth:
        return None
    is_adapted = measures.run.is_adapted
    rows = []
    for key, name, style, sign in METRICS:
        old, new = (metric(metrics, key) for metrics in measures.metrics)
        row: dict[str, Any] = {"name": name, "values": [style.format(new)]}
        if is_adapted:
            change = new - old
            written = f"{100 * change:+.1f} points" if style == "{:.1%}" else style.replace(":", ":+").format(change)
            judgement = "better" if change * sign > 0 else "worse"
            row["values"].insert(0, style.format(old))
            row |= {"change": f"{written} ({judgement})", "judgement": judgement}
            if style.format(old) == style.format(new):
                row |= {"change": "same", "judgement": ""}
        rows.append(row)
    has_labels = measures.run.card.get("sources", {}).get("labels")
    return {
        "rows": rows,
        "columns": ["before", "after", "change"] if is_adapted else ["value"],
        "caption": f"Measured on {len(measures.known):,} labeled images of {len(measures.run.labels):,}",
        "notes": ["Some of these images and their labels were used for training."] if has_labels else [],
    }


def _health(measures: Measures) -> dict[str, Any] | None:
    found = measures.run.card.get("health")
    if not found or measures.has_truth:
        return None
    rows = [
        {"name": name, "values": [style.format(found[f"{key}_{when}"]) for when in ("before", "after")]}
        for key, name, style in (
            ("agreement", "Agreement between similar images", "{:.2f}"),
            ("explained", "Variance explained by the classes", "{:.2f}"),
            ("classes", "Effective number of predicted classes", "{:.1f}"),
            ("confidence", "Mean confidence", "{:.2f}"),
        )
    ]
    rows.insert(
        0, {"name": "Estimated change of accuracy", "values": ["", f"{100 * found['expected_change']:+.1f} points"]}
    )
    rows.append({"name": "Predictions that changed", "values": ["", f"{found['changed']:.0%}"]})
    return {"verdict": found["verdict"], "sentence": found["sentence"], "rows": rows}


def _mismatch(measures: Measures) -> dict[str, Any] | None:
    found = measures.run.alignment
    drawings = [drawing for drawing in (draw_concentration(measures), *draw_mismatch_maps(measures)) if drawing]
    if not found and not drawings:
        return None
    sentence = ""
    if found:
        names = [measures.run.names[c] for c in measures.mismatched]
        n_described = sum(1 for name in names if found.get("descriptions", {}).get(name))
        sentence = misleading_sentence(names, measures.run.n_classes, n_described)
    return {"sentence": sentence, "drawings": drawings, "problems": sorted(found.get("problems", {}).items())}


def misleading_sentence(names: Sequence[str], n_classes: int, n_described: int) -> str:
    """Return which class names are misleading, and how many of these classes have descriptions."""
    if not names:
        return "No misleading class name was found."
    verb = "is" if len(names) == 1 else "are"
    described = f"Descriptions were used for {n_described} of {len(names)}."
    return f"{len(names)} of {n_classes} class names {verb} misleading: {', '.join(names)}. {described}"


def _confusion(measures: Measures) -> dict[str, Any] | None:
    run, groups = measures.run, measures.groups
    if "before" not in run.arrays or run.n_classes < 2:
        return None
    columns = group_columns([[run.names[c] for c in group.classes] for group in groups], [g.closeness for g in groups])
    if measures.has_truth:
        found = [measures.group_measures(group) for group in groups]
        columns.append(Column("Labeled images", [numbers["n_images"] for numbers in found]))
        for title, key, style in (("Accuracy", "accuracy", "{:.1%}"), ("Local ECE", "ece", "{:.3f}")):
            for when in ("before", "after") if run.is_adapted else ("after",):
                columns.append(Column(f"{title} {when}", [n[f"{key}_{when}"] for n in found], style=style))
    drawings = [draw_heat_map(measures, "similarity"), draw_heat_map(measures, "margin")]
    drawings += [draw_groups(measures), draw_confidence(measures), draw_confusion_map(measures)]
    return {"columns": columns, "drawings": [drawing for drawing in drawings if drawing]}


def group_columns(names: Sequence[Sequence[str]], closeness: Sequence[float]) -> list[Column]:
    """Return the first columns of the table of confused groups."""
    return [
        Column("Group", range(1, len(names) + 1)),
        Column("Classes", [", ".join(group) for group in names], "name"),
        Column("Similarity", closeness, style="{:.1f}"),
    ]


def _extremes(measures: Measures) -> dict[str, Any] | None:
    drawing = draw_extremes(measures)
    if drawing is None:
        return None
    n_low = len(extremes(measures)[0])
    states = (False, True) if measures.run.is_adapted else (True,)
    means = [lowest_mean(measures.accuracies(after), n_low) for after in states]
    text = " before and ".join(f"{mean:.1%}" for mean in means) + (" after adaptation" if len(means) > 1 else "")
    return {"sentence": f"The mean accuracy of the {n_low} lowest classes is {text}.", "drawing": drawing}


def skipped_section(skipped: Sequence[tuple[str, str]], file: str) -> dict[str, Any] | None:
    """Return the table of skipped images and the reasons, or None if there are none."""
    if not skipped:
        return None
    rest = f" The first {MOST_FILES} are listed here, all of them in {file}." if len(skipped) > MOST_FILES else ""
    paths, reasons = zip(*skipped[:MOST_FILES], strict=True)
    columns = [Column("File", paths, "name"), Column("Reason", reasons, "text")]
    return {"sentence": f"{count(len(skipped), 'file')} could not be used.{rest}", "columns": columns}


def _settings(run: RunRecord) -> dict[str, Any]:
    sources, folder = run.card.get("sources", {}), run.folder.resolve()
    command = ["captune", "adapt", sources.get("images", "IMAGES"), "--classes", sources.get("classes", "CLASSES")]
    command += ["--labels", sources["labels"]] if sources.get("labels") else []
    command += ["--config", str(folder / "settings.yaml"), "--out", f"{folder.name}-again"]
    if any(source.startswith("<") for source in sources.values()):  # not a path, but an object in memory
        labels = ", labels=labels" if sources.get("labels") else ""
        load = f"yaml.safe_load(open({str(folder / 'settings.yaml')!r}))"
        code = f"captune.adapt(images, classes{labels}, **{load})"
    else:
        code = shlex.join(command)
    environment = dict(run.card["environment"])
    versions = environment.pop("versions", {})
    return {
        "command": code,
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


def count(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('s') else 's'}"
