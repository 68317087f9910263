"""The top of a run's page: input, result, whether to trust it, and what to do next."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import Any

from captune.core.progress import duration
from captune.report.measures import Measures
from captune.results.health import ADVICE
from captune.results.run import Run
from captune.review.estimate import FEWEST_LOOKS, describe_accuracy

GOOD_ENOUGH = 0.9
"""From this accuracy on, the next step is to use the classifier."""

DISCARDED = "Adaptation did not look helpful, so it was not used: classes were predicted from their names alone."
UNADAPTED = "Classes were predicted from their names alone; nothing was adapted to these images."
HEADLINES = {
    "helpful": "Adaptation looks helpful, but nobody has checked the result yet.",
    "unclear": "It is not clear whether adaptation helped.",
    "harmful": "Adaptation looks harmful. Check some images before you use the result.",
}


def describe_top(measures: Measures) -> dict[str, Any]:
    """Return the first section: inputs, outputs, the verdict with its evidence, and the next command."""
    return {
        "inputs": _inputs(measures.run),
        "outputs": _outputs(measures),
        "verdict": _verdict(measures),
        "next": _next_step(measures),
        "n_classes": measures.run.n_classes,
    }


def _inputs(run: Run) -> list[str]:
    skipped = f" ({count(len(run.skipped), 'file')} skipped)" if run.skipped else ""
    found = [
        f"{count(len(run.labels), 'image')}{skipped}",
        f"{count(run.n_classes, 'class name')}",
        f"the image and text model {_short(run.card['settings'].get('backbone', '?'))}",
    ]
    if run.card.get("sources", {}).get("labels"):
        found.append("labels for training")
    n_described = sum(1 for texts in run.alignment.get("descriptions", {}).values() if texts)
    return [*found, f"descriptions of {count(n_described, 'class')}"] if n_described else found


def _outputs(measures: Measures) -> list[str]:
    run = measures.run
    found = ["a class for each image, with a confidence (predictions.csv)"]
    if run.is_adapted:
        n_changed = int((run.labels != run.before_labels).sum())
        share = n_changed / max(1, len(run.labels))
        found.append(f"adaptation changed the class of {count(n_changed, 'image')} ({share:.0%})")
    n_empty = int((measures.counts(after=True) == 0).sum())
    found.append(f"{count(n_empty, 'class')} without any image" if n_empty else "every class has images")
    seconds = run.card["environment"].get("seconds")
    time = f", in {duration(seconds)}" if isinstance(seconds, (int, float)) else ""
    return [*found, f"a classifier for new images, made by the method {run.method}{time}"]


def _verdict(measures: Measures) -> dict[str, Any]:
    run = measures.run
    health, review = run.card.get("health"), (run.card.get("review") or {}).get("accuracy")
    state = health["verdict"] if health and run.is_adapted else ""
    headline = HEADLINES.get(state, DISCARDED if health else UNADAPTED)
    evidence, unverified = [], f"Not verified: whether the names are right. To find out, check {FEWEST_LOOKS} images."
    if health:
        sentence = health["sentence"].removesuffix(f" {ADVICE}")
        evidence.append(f"Without labels: {sentence.partition(': ')[2] or sentence}")
    if review:
        headline = f"Checked by people: {describe_accuracy(review, str(run.folder))}"
        unverified = "Not verified: the images that nobody looked at; the range says how far off they may be."
    if measures.has_truth:
        state, headline = _measured(measures)
        evidence = [f"Measured on {len(measures.known):,} labeled images of {len(run.labels):,}."]
        if run.card.get("sources", {}).get("labels"):
            evidence.append(
                "Some of these images and their labels were used for training, so new images will fare worse."
            )
        unverified = "Not verified: other images than these. Keep some labeled images apart to measure that."
    return {"state": state, "headline": headline, "evidence": evidence, "unverified": unverified}


def _measured(measures: Measures) -> tuple[str, str]:
    before, after = measures.metrics
    new = f"{after.accuracy:.1%} of the labeled images get the right class"
    if not measures.run.is_adapted:
        return "", f"{new}."
    old = f"{before.accuracy:.1%}"
    if old == f"{after.accuracy:.1%}":
        return "unclear", f"Accuracy stayed the same: {new}, as before adaptation."
    state, verb = ("helpful", "rose") if after.accuracy > before.accuracy else ("harmful", "fell")
    return state, f"Accuracy {verb}: {new}, {old} before adaptation."


def _next_step(measures: Measures) -> dict[str, str]:
    run = measures.run
    folder = shlex.quote(str(run.folder))
    review = (run.card.get("review") or {}).get("accuracy")
    accuracy = measures.metrics[1].accuracy if measures.has_truth else review["accuracy"] if review else None
    can_review = run.card.get("image_source", "files") == "files"
    if can_review and accuracy is None:
        why = (
            "Look at some images in your browser. That tells how many are right, and each correction improves the rest."
        )
    elif can_review and accuracy is not None and accuracy < GOOD_ENOUGH:
        why = "Correct some images in your browser. Similar images follow each answer."
    else:
        why = "Classify new images."
        return {"why": why, "command": f"captune predict {folder} NEW_IMAGES --out predictions.csv"}
    return {"why": why, "command": f"captune review {folder}"}


def _short(identifier: str) -> str:
    """Return a backbone's id, with only the last part of an absolute path."""
    source, colon, name = identifier.partition(":")
    return f"{source}:{PurePath(name).name}" if colon and PurePath(name).is_absolute() else identifier


def count(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('s') else 's'}"
