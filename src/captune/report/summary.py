"""The top of a run's page: input, result, whether to trust it, and what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from captune.core.arrays import evenly_spaced
from captune.core.settings import RunSettings
from captune.embeddings.similarity import find_outliers_and_duplicates
from captune.report.class_table import Column, listing
from captune.report.measures import TRUSTED, Measures
from captune.report.pictures import pictures_of
from captune.results.health import ADVICE
from captune.results.run import Run
from captune.results.run_folder import DESCRIPTIONS
from captune.review.estimate import describe_accuracy

GOOD_ENOUGH = 0.9
"""From this accuracy on, the next step is to use the classifier."""
CERTIFIED = 0.95
MOST_FILES = 4
FEWEST_COMPARED = 12
GIVEN_AGAIN = ("backbone", "template", "domain", "root", "seed")
"""Settings of a run that its next command repeats, where they differ from their defaults."""

DISCARDED = "Adaptation did not look helpful, so it was not used: classes were predicted from their names alone."
UNADAPTED = "Classes were predicted from their names alone; nothing was adapted to these images."
HEADLINES = {
    "helpful": "Adaptation looks helpful, but nobody has checked the result yet.",
    "unclear": "It is not clear whether adaptation helped.",
    "harmful": "Adaptation looks harmful. Check some images before you use the result.",
}


def describe_top(measures: Measures) -> dict[str, Any]:
    """Return the first section: model, the verdict with its evidence, what to look at, and the next commands."""
    source, colon, name = str(measures.run.settings.get("backbone", "?")).partition(":")
    return {
        "model": source + colon + (PurePath(name).name if PurePath(name).is_absolute() else name),
        "verdict": _verdict(measures),
        "findings": findings(measures),
        "shipping": _shipping(measures),
        "next": next_steps(measures),
    }


def chosen_method(run: Run) -> str:
    """Return the method of a run, and with `auto`, the one that it chose."""
    chosen = str(run.choice.get("method", "?"))
    return chosen if chosen == run.method else f"{chosen} ({run.method})"


def findings(measures: Measures) -> list[dict[str, Any]]:
    """Return what to look at before the result is used: a title with names and where to look, or with pictures."""
    run, counts, rows = measures.run, measures.counts(after=True), measures.embedded_rows
    absent = run.absent_names
    empty = [name for name, n in zip(run.names, counts, strict=True) if n == 0 and name not in set(absent)]
    unsure = np.flatnonzero((counts > 0) & (measures.highest_confidence < TRUSTED))
    found: list[dict[str, Any]] = [
        {"title": f"{title} ({len(names):,})", "names": listing(names), "section": section, "pictures": []}
        for title, names, section in (
            ("Names that mislead the model", measures.mismatched_names, "mismatch" if run.alignment else ""),
            ("Names that no image seems to show", absent, "classes"),
            ("Classes that no image was given", empty, "classes"),
            (f"Classes without an image above {TRUSTED:.0%} confidence", [run.names[c] for c in unsure], "classes"),
        )
        if names
    ]
    if len(rows) >= FEWEST_COMPARED:
        among = "" if len(rows) == len(run.labels) else f" among {len(rows):,} images"
        titles = ("Images unlike all others", "Images with a near duplicate")
        for title, is_one in zip(titles, find_outliers_and_duplicates(measures.vectors), strict=True):
            if n := int(is_one.sum()):
                own = rows[is_one].tolist()
                names = listing([run.readable.name(row) for row in own], MOST_FILES)
                pictures = pictures_of(run, [own[i] for i in evenly_spaced(n, MOST_FILES)])
                found.append({"title": f"{title}{among} ({n:,})", "names": names, "section": "", "pictures": pictures})
    return found


def _shipping(measures: Measures) -> dict[str, Any] | None:
    """Return how many labels are certain to be right, or how to find out; the curve has a row for each zone."""
    run, found = measures.run, measures.review.get("accepted")
    if run.card.get("image_source", "files") != "files" or run.method == "audit":
        return None
    folder = shlex.quote(str(run.folder))
    if not found:
        why = f"Nobody knows yet. Check the images that this command lists to certify labels at {CERTIFIED:.0%}:"
        command = f"captune suggest {folder} --for-precision {CERTIFIED:g} --out checks.csv"
        return {"why": why, "command": command, "curve": []}
    zones = zip(("Most confident images", "Checked", "Wrong"), zip(*found["zones"], strict=True), strict=False)
    curve = [Column(title, [int(value) for value in values], style="{:,}") for title, values in zones]
    command = f"captune export {folder} --format imagefolder --precision {float(found['precision']):g}"
    return {"why": str(found["sentence"]), "command": command, "curve": curve}


def _verdict(measures: Measures) -> dict[str, str]:
    """Return whether adaptation helped and what is known about the result, with the finding of the health check."""
    run, health, review = measures.run, measures.run.health, measures.review.get("accuracy")
    state = health["verdict"] if health and run.is_adapted else ""
    headline = HEADLINES.get(state, DISCARDED if health else UNADAPTED)
    sentence = health["sentence"].removesuffix(f" {ADVICE}") if health else ""
    if measures.has_truth:
        before, after = (f"{one.accuracy:.1%}" for one in measures.metrics)
        state, headline = "", f"{after} of the labeled images get the right class."
        if run.is_adapted and before == after:
            state, headline = "unclear", f"Accuracy stayed the same: {headline[:-1]}, as before adaptation."
        elif run.is_adapted:
            is_better = measures.metrics[1].accuracy > measures.metrics[0].accuracy
            state, verb = ("helpful", "rose") if is_better else ("harmful", "fell")
            headline = f"Accuracy {verb}: {headline[:-1]}, {before} before adaptation."
    elif review:
        headline = f"Checked by people: {describe_accuracy(review, str(run.folder))}"
    return {"state": state, "headline": headline, "finding": sentence.partition(": ")[2] or sentence}


def next_steps(measures: Measures) -> list[dict[str, str]]:
    """Return what to do next, each with a command that can be pasted."""
    run, folder = measures.run, shlex.quote(str(measures.run.folder))
    if run.method == "audit":
        return _after_audit(measures)
    review = measures.review.get("accuracy")
    accuracy = measures.metrics[1].accuracy if measures.has_truth else review["accuracy"] if review else None
    is_good = accuracy is not None and accuracy >= GOOD_ENOUGH
    if is_good or run.card.get("image_source", "files") != "files":
        command = f"captune predict {folder} NEW_IMAGES --out predictions.csv"
        return [{"why": "Classify new images.", "command": command}]
    why = "Correct some images in your browser. Similar images follow each answer."
    if accuracy is None:
        why = "Look at some images in your browser: it tells how many are right, and each correction improves the rest."
    return [{"why": why, "command": f"captune review {folder}"}]


def _after_audit(measures: Measures) -> list[dict[str, str]]:
    run, steps = measures.run, []
    undescribed = [name for name in measures.mismatched_names if name not in measures.described]
    if undescribed:
        why = f"Describe what {listing(undescribed)} look like: with a language model, or in a YAML file (file:FILE)."
        audit = command_of(run, "audit", "--describer", "openai:gpt-4o-mini", "--out", str(run.folder), "--overwrite")
        steps.append({"why": why, "command": audit})
    if measures.groups:
        why = "Look at the confused classes in your browser, and merge those that even you cannot tell apart."
        steps.append({"why": why, "command": shlex.join(["captune", "review", str(run.folder)])})
    texts = ["--describer", f"file:{run.folder / DESCRIPTIONS}"] if measures.described else []
    why = f"Check and edit {DESCRIPTIONS}, then adapt with it." if texts else "Adapt the model to these images."
    return [*steps, {"why": why, "command": command_of(run, "adapt", *texts, "--out", "captune-run")}]


def repeating(run: Run, settings: Path, out: str) -> str:
    """Return the command that repeats a run, or the call in Python if its inputs were in memory."""
    if _is_in_memory(run):
        given = ", labels=labels" if run.sources.get("labels") else ""
        return f"captune.adapt(images, classes{given}, **yaml.safe_load(open({str(settings)!r})))"
    labels = ["--labels", run.sources["labels"]] if run.sources.get("labels") else []
    return shlex.join([*_begin(run, "adapt"), *labels, "--config", str(settings), "--out", out])


def command_of(run: Run, verb: str, *words: str) -> str:
    """Return a command for the images and classes of a run, or a call in Python if these were in memory."""
    settings = {name: run.settings.get(name) for name in GIVEN_AGAIN}
    changed = {k: str(v) for k, v in settings.items() if v not in (None, "", getattr(RunSettings, k))}
    if _is_in_memory(run):
        return f"captune.{verb}(images, classes{''.join(f', {k}={v!r}' for k, v in changed.items())})"
    flags = [word for name, value in changed.items() for word in (f"--{name}", value)]
    return shlex.join([*_begin(run, verb), *flags, *words])


def _begin(run: Run, verb: str) -> list[str]:
    return ["captune", verb, run.sources.get("images", "IMAGES"), "--classes", run.sources.get("classes", "CLASSES")]


def _is_in_memory(run: Run) -> bool:
    return any(source.startswith("<") for source in run.sources.values())


def count(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('s') else 's'}"
