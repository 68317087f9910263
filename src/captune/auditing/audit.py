"""The audit: misleading class names and confused classes, found before anything is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captune.auditing.page import CARD, FORMAT, VERSION, write_audit_page
from captune.concepts.alignment import Alignment, Choice, Scope, align_concepts
from captune.concepts.confusion import class_prototypes
from captune.concepts.groups import class_closeness, confused_groups
from captune.concepts.mismatch import MismatchSettings
from captune.core import runtime
from captune.core.arrays import Floats, Ints
from captune.core.display import Displayed, shortened
from captune.core.errors import InputError
from captune.core.files import write_json
from captune.core.replacing import replaced
from captune.core.restoring import unchanged
from captune.core.settings import Positive, RunSettings, build_run
from captune.core.wording import option
from captune.data.images import ImageCollection, no_usable_image
from captune.data.inputs import Images
from captune.data.labels import read_labels
from captune.data.vocabulary import Vocabulary, write_descriptions
from captune.embeddings.embed import embed_classes, embed_images, embed_texts, score
from captune.labeling.pseudo_labels import PseudoLabels
from captune.labeling.selection import first_labels
from captune.plan import Plan, make_plan
from captune.report.inline import Report, saved_page
from captune.results.metrics import summarize
from captune.results.run_folder import claim_folder, readable

MOST_EXAMPLES = 3
"""Images of each class in the report, those predicted with the highest confidence."""


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit; the paper runs the detection once, with threshold_share 0.1.

    Attributes:
        threshold_share: Stop a detection run when fewer than this share of the classes is left.
        runs: Number of detection runs, each with different random clusters.
        min_frequency: A class name is misleading if at least this share of the runs finds it.
        describe: Which classes to describe: those with misleading names, or all.
        choose: Whether a class is represented by its best description, or by the mean of all.
        k: Number of images per class that would be pseudo-labeled.
    """

    threshold_share: float = MismatchSettings.threshold_share
    runs: Positive = MismatchSettings.runs
    min_frequency: float = MismatchSettings.min_frequency
    describe: Scope = "mismatched"
    choose: Choice = "mean"
    k: Positive = 16


@dataclass(frozen=True, repr=False)
class Audit(Displayed):
    """The findings of an audit; `facts` is the content of audit.json."""

    facts: Mapping[str, Any]
    descriptions: Mapping[str, Sequence[str]]

    def save(self, folder: str | Path) -> Path:
        """Write audit.json, and descriptions.yaml to edit and reuse."""
        target = Path(folder)
        with replaced(target, CARD) as staging:
            if self.descriptions:
                write_descriptions(staging / "descriptions.yaml", self.descriptions)
            write_json(staging / CARD, dict(self.facts))
        return target

    def report(self) -> Report:
        """Return the page of the audit, which a notebook shows inline."""
        return saved_page(self.save, write_audit_page)

    def summary(self) -> dict[str, object]:
        """Return the findings, in short."""
        zero_shot = self.facts.get("truth", {}).get("zero_shot", {})
        return {
            "images": self.facts["n_images"] - len(self.facts["skipped"]),
            "skipped": len(self.facts["skipped"]),
            "classes": len(self.facts["classes"]),
            "misleading_names": shortened(self.facts["mismatched"]),
            "confused_groups": len(self.facts["confused_groups"]),
            **({"zero_shot_accuracy": round(zero_shot["accuracy"], 4)} if zero_shot else {}),
        }


@unchanged()
def audit(
    images: Images,
    classes: Any,  # noqa: ANN401 (what `adapt` takes)
    *,
    labels: Any = None,  # noqa: ANN401
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    progress: bool = True,
    **settings: Any,  # noqa: ANN401 (checked against the settings dataclasses)
) -> Audit:
    """Find misleading class names and confused classes without training; with labels, also measure accuracy."""
    models = {name: settings[name] for name in ("backbone", "describer") if not isinstance(settings.get(name, ""), str)}
    run_settings, own = build_run({name: settings[name] for name in settings if name not in models}, AuditSettings)
    if run_settings.devices * run_settings.num_nodes > 1:
        raise InputError(
            "An audit runs in one process. To embed the images with several processes first, run captune adapt IMAGES "
            "--method zero_shot --devices N; the audit reads the embeddings from the cache."
        )
    names = {field.name for field in dataclasses.fields(RunSettings)}
    given = {name: value for name, value in settings.items() if name in names and name not in ("method", "preset")}
    plan = make_plan(images, classes, None, {**given, "method": "zero_shot"})
    truth = read_labels(labels, plan.images, plan.task.vocabulary.names) if labels is not None else None
    plan.check_backbone()
    with claim_folder(out, overwrite, None, CARD) if out is not None else nullcontext() as target:
        return _audit(plan, truth, own, target, {"quiet": quiet, "progress": progress})


def _audit(
    plan: Plan,
    truth: Ints | None,
    own: AuditSettings,
    target: Path | None,
    shown: Mapping[str, Any],
) -> Audit:
    collection, vocabulary, run_settings = plan.images, plan.task.vocabulary, plan.settings
    describer = plan.open_describer()

    workers = None if run_settings.workers < 0 else run_settings.workers
    where = {name: getattr(run_settings, name) for name in ("accelerator", "precision")}
    engine = runtime.start(seed=run_settings.seed, workers=workers, **shown, **where)
    if collection.unused:
        engine.say(collection.unused)
    backbone = plan.open_backbone().to(engine.device)
    embedded = embed_images(backbone, collection, plan.cache, engine, run_settings.batch_size)
    if len(embedded.image_index) == 0:
        raise InputError(no_usable_image(collection, embedded.skipped))
    texts = embed_classes(backbone, vocabulary)
    alignment = align_concepts(
        embedded.vectors,
        texts,
        vocabulary.names,
        backbone.logit_scale,
        describer,
        lambda sentences: embed_texts(backbone, sentences),
        settings=MismatchSettings(
            threshold_share=own.threshold_share, runs=own.runs, min_frequency=own.min_frequency, seed=run_settings.seed
        ),
        describe=own.describe,
        choose=own.choose,
        phrase=run_settings.domain,
    )
    probabilities = score(embedded.vectors, texts, backbone.logit_scale)
    by_name = first_labels(embedded.vectors, texts, backbone.logit_scale, k=own.k)
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "settings": {**dataclasses.asdict(run_settings), **dataclasses.asdict(own)},
        "versions": runtime.versions(),
        "data_fingerprint": collection.fingerprint,
        "n_images": len(collection),
        "skipped": {collection.name(i): why for i, why in sorted(embedded.skipped.items())},
        "image_root": readable(str(collection.root.absolute())),
        "classes": _class_rows(vocabulary, alignment, collection, embedded.image_index, probabilities),
        "mismatched": [vocabulary.names[c] for c in alignment.findings.mismatched],
        "confused_groups": _groups(vocabulary, embedded.vectors, by_name, texts, probabilities),
        "problems": dict(alignment.descriptions.problems),
    }
    if truth is not None:
        by_text = first_labels(embedded.vectors, texts, backbone.logit_scale, alignment.vectors, k=own.k)
        facts["truth"] = _truth(vocabulary, probabilities, truth[embedded.image_index], by_name, by_text)
    facts["next_steps"] = _next_steps(facts, run_settings, collection)
    result = Audit(facts, alignment.descriptions.found)
    if target is not None and engine.is_writer:
        result.save(target)
        try:
            write_audit_page(target)
        except Exception as error:  # the audit itself is saved
            engine.say(f"The audit was saved, but its report failed: {type(error).__name__}: {error}")
    return result


def _class_rows(
    vocabulary: Vocabulary, alignment: Alignment, images: ImageCollection, image_index: Ints, probabilities: Floats
) -> list[dict[str, Any]]:
    findings = alignment.findings
    labels, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    found = []
    for c, name in enumerate(vocabulary.names):
        rows = np.flatnonzero(labels == c)
        rows = rows[np.argsort(-confidence[rows], kind="stable")[:MOST_EXAMPLES]]
        examples = [(images.name(int(image_index[i])), round(float(confidence[i]), 4)) for i in rows]
        found.append(
            {
                "name": name,
                "predicted": int(findings.predicted_counts[c]),
                "is_mismatched": bool(c in findings.mismatched),
                "mismatch_frequency": round(float(findings.frequency[c]), 4),
                "concentration": round(float(findings.concentration[c]), 4),
                "description": list(alignment.sentences.get(c, ())),
                "examples": [{"path": path, "confidence": value} for path, value in examples],
            }
        )
    return found


def _groups(
    vocabulary: Vocabulary, vectors: Floats, labels: PseudoLabels, texts: Floats, probabilities: Floats
) -> list[dict[str, Any]]:
    prototypes = class_prototypes(vectors[labels.image_index], labels.labels, texts)
    return [
        {"classes": [vocabulary.names[c] for c in group.classes], "closeness": round(group.closeness, 3)}
        for group in confused_groups(class_closeness(prototypes, texts, probabilities))
    ]


def _truth(
    vocabulary: Vocabulary, probabilities: Floats, truth: Ints, by_name: PseudoLabels, by_text: PseudoLabels
) -> dict[str, Any]:
    known = truth >= 0
    if not known.any():
        raise InputError("None of the images has a label, so accuracy cannot be measured.")
    metrics = summarize(probabilities[known], truth[known], n_classes=len(vocabulary))
    columns = {}
    for column, labels in (("by_name", by_name), ("by_description", by_text)):
        judged = labels.subset(known[labels.image_index])
        per_class = [None if np.isnan(value) else round(float(value), 4) for value in judged.per_class_precision(truth)]
        columns[column] = {"all": round(judged.precision(truth), 4), "per_class": per_class}
    return {"zero_shot": metrics.as_dict(), "first_labels_precision": columns}


def _next_steps(facts: Mapping[str, Any], settings: RunSettings, images: ImageCollection) -> list[str]:
    steps = []
    undescribed = [row["name"] for row in facts["classes"] if row["is_mismatched"] and not row["description"]]
    if undescribed:
        steps.append(
            f"Describe {', '.join(undescribed)}: pass {option('describer', 'openai:gpt-4o-mini')}, or write sentences "
            "about the appearance of these classes to a YAML file and pass "
            f"{option('describer', 'file:descriptions.yaml')}."
        )
    elif facts["mismatched"]:
        steps.append(
            f"Check and edit descriptions.yaml, then adapt with {option('describer', 'file:descriptions.yaml')}."
        )
    if facts["confused_groups"]:
        steps.append("Look at the confused classes, and merge classes that even you cannot tell apart.")
    place = images.root if images.kind == "files" else "IMAGES"
    steps.append(f"Adapt: captune adapt {place} --classes ... --backbone {settings.backbone} --method cap")
    return steps
