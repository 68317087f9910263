"""The end of every adaptation: predict, judge, keep the adapted classifier or zero-shot, and collect evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.backbones.base import Backbone
from captune.concepts.alignment import choose_texts
from captune.core import distributed, runtime
from captune.core.arrays import Floats, Ints, canonical_order, row_parts, take_rows, unit_rows
from captune.core.errors import InputError
from captune.core.text import option
from captune.data.images import ImageCollection
from captune.embeddings.embed import embed_classes, score
from captune.embeddings.predictions import Predictions
from captune.labeling.pseudo_labels import PseudoLabels
from captune.methods.base import Context
from captune.mixture.open_world import fit_to_names, score_fits
from captune.plan import Plan
from captune.results.classifier import Classifier
from captune.results.health import MOST_JUDGED, HealthCheck, check_health
from captune.results.run import Run
from captune.tuners.base import Tuner
from captune.tuners.frozen import Frozen

MOST_NAMED = 3
MOST_PROBABILITIES = 4_000_000
"""Images times classes, 16 MB; of more images, a sample is saved."""
MOST_EMBEDDINGS = 2_000


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a run saves for its report, of bounded size for any number of images.

    Attributes:
        arrays: `before_labels` (readable images,); `rows`, `before`, `after` of the saved images; `embedded_rows` and
            `vectors` of a sample; `class_vectors` and `logit_scale`; `history` (changes, 3), the epoch, readable image
            and class of each change of a pseudo-label, -1 if it was taken away.
        history: The pseudo-labels of readable images after some epochs, the final ones last.
        health: The health check; None for a run without adaptation.
    """

    arrays: Mapping[str, NDArray[Any]]
    history: Sequence[tuple[int, PseudoLabels]] = ()
    health: HealthCheck | None = None

    def united(self, n_parts: Sequence[int], unite: Callable[[Floats], Floats], after: Floats) -> Evidence:
        """Return the evidence of parts of classes as that of the classes, which predict `after` `(images, classes)`."""
        class_of, starts = np.repeat(np.arange(len(n_parts)), n_parts), np.cumsum([0, *n_parts[:-1]])
        arrays = dict(self.arrays)
        arrays["before"], arrays["after"] = unite(arrays["before"]), after[arrays["rows"]]
        arrays["before_labels"] = class_of[arrays["before_labels"]].astype(np.int32)
        arrays["class_vectors"] = unit_rows(np.add.reduceat(arrays["class_vectors"], starts, axis=0))
        changes = np.array(arrays["history"])
        changes[:, 2] = np.append(class_of, -1)[changes[:, 2]]
        arrays["history"] = changes
        made = [
            (epoch, replace(labels, labels=class_of[labels.labels], n_classes=len(n_parts), candidates=None))
            for epoch, labels in self.history[-1:]
        ]
        return replace(self, arrays=arrays, history=made)


@dataclass(frozen=True, eq=False)
class Finished:
    """What came out of an adaptation of a plan; for `kept`, `evidence` and `discarded`, see `Run`."""

    plan: Plan
    context: Context
    classifier: Classifier
    predictions: Predictions
    kept: str = "adapted"
    evidence: Evidence | None = None
    discarded: Classifier | None = None

    def collect(self, predictions: Predictions) -> Evidence | None:
        """Collect what the report of these predictions needs; a failure must not lose the run."""
        try:
            return _collect(self, predictions)
        except Exception as error:
            self.context.say(f"The report will be incomplete: {type(error).__name__}: {error}")
            return None

    def run(self, environment: Mapping[str, Any], **changes: Any) -> Run:  # noqa: ANN401 (arguments of `Run`)
        """Return the run; what a session knows better than the plan comes as changes."""
        spent = self.context.runtime
        steps = {step: round(seconds, 3) for step, seconds in spent.spent.items()}
        run = Run(
            settings=self.plan.all_settings(),
            images=self.plan.images,
            made=(self.classifier, self.predictions),
            skipped=self.predictions.skipped,
            environment={**environment, "seconds": round(spent.seconds(), 3), "seconds_of_steps": steps},
            rounds=self.context.rounds,
            evidence=self.evidence,
            kept=self.kept,
            sources=self.plan.sources,
            discarded=self.discarded,
        )
        return replace(run, **changes) if changes else run


def finish(plan: Plan, backbone: Backbone, context: Context, keeps_zero_shot: bool | None = None) -> Finished:
    """Adapt, predict and keep the better classifier; a caller that has decided before need not judge again."""
    plan = replace(plan, task=context.in_canonical_order(plan.task, backbone))
    tuner = plan.method.adapt(plan.task, backbone, context)
    made = Finished(plan, context, *_predict(plan, tuner, context))
    if skipped := made.predictions.skipped:
        first = ", ".join(f"{plan.images.name(i)} ({skipped[i]})" for i in sorted(skipped)[:MOST_NAMED])
        rest = f" and {len(skipped) - MOST_NAMED} more, see skipped.csv" if len(skipped) > MOST_NAMED else ""
        context.say(f"Skipped {len(skipped)} of {len(plan.images)} images that cannot be read: {first}{rest}.")
    evidence = None
    if keeps_zero_shot is None:
        evidence = made.collect(made.predictions)
        keeps_zero_shot = _keeps_zero_shot(plan, evidence, context)
    if not keeps_zero_shot:
        return _with_fits(replace(made, evidence=evidence))
    if evidence is not None:
        evidence = replace(evidence, arrays={**evidence.arrays, "after": evidence.arrays["before"]})
    kept = _predict(plan, Frozen(backbone, plan.task.vocabulary), context)
    return _with_fits(Finished(plan, context, *kept, "zero_shot", evidence, made.classifier))


def _predict(plan: Plan, tuner: Tuner, context: Context) -> tuple[Classifier, Predictions]:
    classifier = Classifier.from_tuner(tuner)
    if tuner.edits_images:
        return classifier, classifier.compute(plan.images, None, context.runtime, plan.settings.batch_size)
    found = context.embed(tuner.backbone, plan.images)
    rows, names = classifier.score_embeddings(found.vectors), classifier.names
    return classifier, Predictions(found.image_index, rows, names, plan.images, skipped=found.skipped)


def _with_fits(made: Finished) -> Finished:
    """Return the same with how well each image fits the names of the kept classifier."""
    plan, context, backbone = made.plan, made.context, made.classifier.backbone
    embedded, texts = context.embed(backbone, plan.images), embed_classes(backbone, made.classifier.vocabulary)
    vectors = take_rows(embedded.vectors, np.searchsorted(embedded.image_index, made.predictions.image_index))
    if (key := texts.tobytes()) not in context.fit_scores:
        context.fit_scores[key] = score_fits(vectors, texts)
    fits = fit_to_names(
        vectors,
        texts,
        known=context.embed(backbone, plan.task.labeled.images).vectors,
        unknown=context.embed(backbone, plan.task.unknown).vectors,
        scores=context.fit_scores[key],
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


def _collect(made: Finished, predictions: Predictions) -> Evidence:
    """Return the evidence of predictions; embeddings come from the cache."""
    task, context, backbone = made.plan.task, made.context, made.classifier.backbone
    embedded = context.embed(backbone, made.plan.images)
    vectors = take_rows(embedded.vectors, np.searchsorted(embedded.image_index, predictions.image_index))
    class_vectors = embed_classes(backbone, task.vocabulary)
    before, after = score(vectors, class_vectors, backbone.logit_scale), predictions.probabilities
    n_images, n_classes = after.shape
    # Samples are those of the canonical order, the same whatever the order of the files.
    order = canonical_order(vectors)
    kept, sample = (np.sort(order[:most]) for most in (max(1, MOST_PROBABILITIES // n_classes), MOST_EMBEDDINGS))
    health = None
    if not all(np.allclose(before[part], after[part], atol=1e-4) for part in row_parts(n_images, n_classes)):
        texts, (labeled, labels) = class_vectors, context.labeled_vectors(task, backbone)
        if made.classifier.vocabulary.descriptions != task.vocabulary.descriptions:
            described, judged = embed_classes(backbone, made.classifier.vocabulary), vectors[order[:MOST_JUDGED]]
            if choose_texts(judged, class_vectors, described, backbone.logit_scale, (labeled, labels))[0]:
                texts = described
        health = check_health(vectors, before, after, texts, backbone.logit_scale, labeled=labeled, labels=labels)
    # Methods count the readable unlabeled images, in their own order.
    unlabeled = task.unlabeled.subset(context.embed(backbone, task.unlabeled).image_index)
    row_of = {made.plan.images.name(position): row for row, position in enumerate(predictions.image_index.tolist())}
    rows = np.asarray([row_of[unlabeled.name(i)] for i in range(len(unlabeled))], dtype=np.int64)
    history = [(epoch, labels.reindexed(rows)) for epoch, labels in context.history]
    arrays = {
        "history": changes_of(history, n_images).astype(np.int32),
        "before_labels": before.argmax(axis=1).astype(np.int32),
        "rows": kept.astype(np.int32),
        "before": before[kept],
        "after": after[kept],
        "embedded_rows": sample.astype(np.int32),
        "vectors": vectors[sample].astype(np.float16),
        "class_vectors": class_vectors,
        "logit_scale": np.asarray([backbone.logit_scale], dtype=np.float32),
    }
    return Evidence(arrays, history, health)


def changes_of(history: Sequence[tuple[int, PseudoLabels]], n_images: int) -> Ints:
    """Return epoch, image and class of each change `(changes, 3)`; the class is -1 if a label was taken away."""
    before, found = np.full(n_images, -1), [np.empty((0, 3), dtype=np.int64)]
    for epoch, labels in history:
        now = np.full(n_images, -1)
        now[labels.image_index] = labels.labels
        changed = np.flatnonzero(now != before)
        found.append(np.stack([np.full(len(changed), epoch), changed, now[changed]], axis=1))
        before = now
    return np.concatenate(found)


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
