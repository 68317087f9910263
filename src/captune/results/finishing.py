"""The end of every adaptation: predict, judge, keep the adapted classifier or zero-shot, and make a run of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from captune.backbones.base import Backbone
from captune.core import distributed, runtime
from captune.core.arrays import take_rows
from captune.core.errors import InputError
from captune.core.text import option
from captune.data.images import ImageCollection
from captune.data.vocabulary import Vocabulary
from captune.embeddings.embed import embed_classes
from captune.embeddings.predictions import Predictions
from captune.methods.base import Context
from captune.mixture.unknown_images import fit_to_names
from captune.plan import Plan
from captune.results.classifier import Classifier, predict_collection
from captune.results.evidence import Evidence, collect_evidence
from captune.results.run import Run
from captune.tuners.base import Tuner
from captune.tuners.frozen import Frozen

MOST_NAMED = 3


@dataclass(frozen=True, eq=False)
class Finished:
    """What came out of an adaptation of a plan: the classifier that is kept, and its predictions.

    `vocabulary` has the classes as the kept classifier describes them. `kept` is `adapted`, or `zero_shot` if
    adaptation looked harmful; `discarded` is the adapted classifier then. `evidence` is None if it was not collected.
    """

    plan: Plan
    context: Context
    vocabulary: Vocabulary
    classifier: Classifier
    predictions: Predictions
    kept: str = "adapted"
    evidence: Evidence | None = None
    discarded: Classifier | None = None

    def collect(self, predictions: Predictions) -> Evidence | None:
        """Collect what the report of these predictions needs; a failure must not lose the run."""
        task, backbone = self.plan.task, self.classifier.backbone
        try:
            return collect_evidence(task, self.plan.images, backbone, self.context, predictions, self.vocabulary)
        except Exception as error:
            self.context.say(f"The report will be incomplete: {type(error).__name__}: {error}")
            return None

    def run(self, environment: Mapping[str, Any], **changes: Any) -> Run:  # noqa: ANN401 (arguments of `Run`)
        """Return the run; what a session knows better than the plan comes as changes."""
        spent = self.context.runtime
        steps = {step: round(seconds, 3) for step, seconds in spent.spent.items()}
        found: dict[str, Any] = {
            "settings": self.plan.all_settings(),
            "images": self.plan.images,
            "predictions": self.predictions,
            "skipped": self.predictions.skipped,
            "classifier": self.classifier,
            "environment": {**environment, "seconds": round(spent.seconds(), 3), "seconds_of_steps": steps},
            "rounds": self.context.rounds,
            "evidence": self.evidence,
            "kept": self.kept,
            "sources": self.plan.sources,
            "discarded": self.discarded,
        }
        return Run(**{**found, **changes})


def finish(plan: Plan, backbone: Backbone, context: Context, keeps_zero_shot: bool | None = None) -> Finished:
    """Adapt, predict and keep the better classifier; a caller that has decided before need not judge again."""
    plan = replace(plan, task=context.in_canonical_order(plan.task, backbone))
    tuner = plan.method.adapt(plan.task, backbone, context)
    made = Finished(plan, context, tuner.vocabulary, *_predict(plan, tuner, context))
    if made.predictions.skipped:
        context.say(describe_skipped(plan.images, made.predictions.skipped))
    evidence = None
    if keeps_zero_shot is None:
        evidence = made.collect(made.predictions)
        keeps_zero_shot = _keeps_zero_shot(plan, evidence, context)
    if not keeps_zero_shot:
        return _with_fits(replace(made, evidence=evidence))
    evidence = evidence.undone() if evidence is not None else None
    kept = _predict(plan, Frozen(backbone, plan.task.vocabulary), context)
    return _with_fits(Finished(plan, context, plan.task.vocabulary, *kept, "zero_shot", evidence, made.classifier))


def _predict(plan: Plan, tuner: Tuner, context: Context) -> tuple[Classifier, Predictions]:
    classifier = Classifier.from_tuner(tuner)
    embedded = None if tuner.edits_images else context.embed(tuner.backbone, plan.images)
    size = plan.settings.batch_size
    return classifier, predict_collection(classifier, plan.images, context.cache, context.runtime, size, embedded)


def _with_fits(made: Finished) -> Finished:
    """Return the same with how well each image fits the names of the kept classifier."""
    plan, context, backbone = made.plan, made.context, made.classifier.backbone
    embedded = context.embed(backbone, plan.images)
    fits = fit_to_names(
        take_rows(embedded.vectors, np.searchsorted(embedded.image_index, made.predictions.image_index)),
        embed_classes(backbone, made.vocabulary),
        known=context.embed(backbone, plan.task.labeled.images).vectors,
        unknown=context.embed(backbone, plan.task.unknown).vectors,
    )
    return replace(made, predictions=replace(made.predictions, fits=fits, reject=plan.settings.reject))


def _keeps_zero_shot(plan: Plan, evidence: Evidence | None, context: Context) -> bool:
    """Show the result of the health check; return whether to keep zero-shot, as decided by the first process."""
    health = evidence.health if evidence is not None else None
    if health is not None:
        context.say(health.sentence)
    has_choice = plan.settings.method != "zero_shot" and not len(plan.task.labeled)
    is_doubtful = has_choice and health is not None and health.verdict != "helpful"
    _, keeps = distributed.from_first(lambda: ({}, plan.settings.keep_better and is_doubtful))
    if keeps:
        context.say(f"The zero-shot classifier is kept. To keep the adapted one anyway: {option('keep_better', False)}")
    return bool(keeps)


def environment_of(images: ImageCollection, backbone: Backbone, engine: runtime.Runtime) -> dict[str, Any]:
    """Return what identifies the data, weights and libraries of a run; all processes must use the same."""
    data, weights = images.fingerprint, backbone.fingerprint()
    inputs = distributed.gather([len(images), data, weights])
    different = next((number for number, own in enumerate(inputs) if own != inputs[0]), None)
    if different is not None:
        raise InputError(
            f"Process {different} has {inputs[different][0]} images and weights {inputs[different][2]}, but the first "
            f"process has {inputs[0][0]} images and weights {inputs[0][2]}. Use the same files on all machines."
        )
    return {
        "versions": runtime.versions(),
        "seed": engine.seed,
        "data_fingerprint": data,
        "backbone_fingerprint": weights,
        "device": str(engine.device),
        "processes": distributed.size(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def describe_skipped(images: ImageCollection, skipped: Mapping[int, str]) -> str:
    """Return how many images were skipped, with the first few names and reasons."""
    first = [f"{images.name(position)} ({skipped[position]})" for position in sorted(skipped)[:MOST_NAMED]]
    rest = f" and {len(skipped) - MOST_NAMED} more, see skipped.csv" if len(skipped) > MOST_NAMED else ""
    return f"Skipped {len(skipped)} of {len(images)} images that cannot be read: {', '.join(first)}{rest}."
