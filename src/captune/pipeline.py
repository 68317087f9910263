"""The straight line: images and class names in, a saved and measurable classifier out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from captune.backbones.base import Backbone
from captune.core import distributed, runtime
from captune.core.errors import InputError
from captune.core.settings import NO_RESULT, WHERE
from captune.describers.base import open_describer
from captune.embeddings.cache import EmbeddingCache, default_folder
from captune.embeddings.predictions import Predictions
from captune.methods.base import Context
from captune.plan import Plan, check_backbone, load_backbone, make_plan
from captune.results.claim import claim_folder
from captune.results.classifier import Classifier
from captune.results.evidence import Evidence, gather
from captune.results.predict import predict_collection
from captune.results.run import CHECKPOINTS, AdaptationRun
from captune.training.checkpoint import CheckpointFolder, digest_of, drop_checkpoints
from captune.tuners.frozen import Frozen


def adapt(
    images: str | Path,
    classes: str | Path | Sequence[str],
    *,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
    **settings: Any,  # noqa: ANN401 (checked against the settings dataclasses)
) -> AdaptationRun:
    """Adapt a backbone to images without labels and return the run; with `out`, also save it as a folder.

    Keyword settings are those of every run (method, backbone, template, seed, ...) and those of the method.
    """
    plan = make_plan(images, classes, labels, settings)
    sources = _sources(images, classes, labels)
    return carry_out(plan, out=out, overwrite=overwrite, resume=resume, quiet=quiet, sources=sources)


def carry_out(
    plan: Plan,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
    sources: Mapping[str, str] | None = None,
    report: bool = True,
    keep_checkpoints: bool = False,
) -> AdaptationRun:
    """Do what a plan says; `sources` tells where its images and names came from, in the words of the command line."""
    check_backbone(plan.settings.backbone, getattr(plan.method.settings, "tuner", ""))
    workers = None if plan.settings.workers < 0 else plan.settings.workers
    where = {name: getattr(plan.settings, name) for name in WHERE}
    engine = runtime.start(seed=plan.settings.seed, workers=workers, quiet=quiet, **where)
    target = Path(out) if out is not None else None
    with engine.together():
        with ExitStack() as stack:  # what the first process claims is its own until the run is saved
            if target is not None:
                claim = claim_folder(target, overwrite, resume)
                distributed.from_first(lambda: ({}, str(stack.enter_context(claim))))
            run = _carry_out(plan, engine, target, sources or {}, report)
        if target is not None and engine.is_writer and not keep_checkpoints:
            drop_checkpoints(target / CHECKPOINTS)  # last, so that a kill at any moment before costs no training
        return run


def _carry_out(
    plan: Plan, engine: runtime.Runtime, target: Path | None, sources: Mapping[str, str], report: bool
) -> AdaptationRun:
    cache_folder = Path(plan.settings.cache) if plan.settings.cache else default_folder()
    describer = open_describer(plan.settings.describer, cache_folder)

    backbone = load_backbone(plan.settings.backbone).to(engine.device)
    backbone.texts_at_once = plan.settings.class_chunk
    environment = {
        "versions": runtime.versions(),
        "seed": plan.settings.seed,
        "data_fingerprint": plan.images.fingerprint,
        "backbone_fingerprint": backbone.fingerprint(),
        "device": str(engine.device),
        "processes": distributed.size(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    _check_alike(plan, environment)
    checkpoints = CheckpointFolder(target / CHECKPOINTS, _key(plan, environment)) if target is not None else None
    context = Context(
        runtime=engine,
        cache=EmbeddingCache(cache_folder),
        batch_size=plan.settings.batch_size,
        describer=describer,
        domain=plan.settings.domain,
        checkpoints=checkpoints,
    )
    if plan.settings.preset:
        engine.say(f"Method {plan.settings.method}, preset {plan.settings.preset}.")

    tuner = plan.method.adapt(plan.task, backbone, context)
    classifier = Classifier.from_tuner(tuner)
    embedded = None if tuner.edits_images else context.embed(backbone, plan.images)
    predictions, skipped = predict_collection(
        classifier, plan.images, context.cache, engine, plan.settings.batch_size, embedded
    )
    if skipped:
        engine.say(f"{len(skipped)} of {len(plan.images)} images were skipped because they cannot be read.")

    evidence, kept = _evidence(plan, backbone, context, predictions), "adapted"
    if _is_refused(plan, evidence, engine):
        evidence, kept = evidence.undone() if evidence is not None else None, "zero_shot"
        classifier = Classifier.from_tuner(Frozen(backbone, plan.task.vocabulary))
        embedded = context.embed(backbone, plan.images)
        predictions, skipped = predict_collection(
            classifier, plan.images, context.cache, engine, plan.settings.batch_size, embedded
        )

    run = AdaptationRun(
        settings=plan.all_settings(),
        images=plan.images,
        predictions=predictions,
        skipped=skipped,
        classifier=classifier,
        environment={
            **environment,
            "seconds": round(engine.seconds(), 3),
            "seconds_of_steps": {what: round(seconds, 3) for what, seconds in engine.spent.items()},
        },
        rounds=context.rounds,
        evidence=evidence,
        kept=kept,
        sources=sources,
    )
    if target is not None and engine.is_writer:
        run.save(target)
        if report:
            _write_report(target, engine)
    return run


def _check_alike(plan: Plan, environment: Mapping[str, Any]) -> None:
    """Make sure that all processes see the same images and weights, also where they run on other machines."""
    seen = distributed.gather([len(plan.images), environment["data_fingerprint"], environment["backbone_fingerprint"]])
    other = next((number for number, facts in enumerate(seen) if facts != seen[0]), None)
    if other is not None:
        raise InputError(
            f"Process {other} sees other files than the first: {seen[other][0]} images and weights "
            f"{seen[other][2]}, the first {seen[0][0]} images and weights {seen[0][2]}. Give all machines the same."
        )


def _sources(images: str | Path, classes: str | Path | Sequence[str], labels: str | Path | None) -> dict[str, str]:
    """Return where everything came from, as the command line would say it."""
    given = str(classes) if isinstance(classes, (str, Path)) else ",".join(classes)
    return {"images": str(images), "classes": given, **({"labels": str(labels)} if labels is not None else {})}


def _evidence(plan: Plan, backbone: Backbone, context: Context, predictions: Predictions) -> Evidence | None:
    """Gather what the report needs; the run is saved in any case."""
    try:
        return gather(plan.task, plan.images, backbone, context, predictions)
    except Exception as error:
        context.say(f"The report will be short, evidence is missing: {type(error).__name__}: {error}")
        return None


def _is_refused(plan: Plan, evidence: Evidence | None, engine: runtime.Runtime) -> bool:
    """Say what the check without labels found; return whether zero-shot is kept instead, as the first process says."""
    health = evidence.health if evidence is not None else None
    if health is not None:
        engine.say(health.sentence)
    is_harmful = health is not None and health.verdict == "harmful"
    _, is_refused = distributed.from_first(lambda: ({}, plan.settings.keep_better and is_harmful))
    if is_refused:
        engine.say("Zero-shot stays the classifier.")
    return bool(is_refused)


def _write_report(target: Path, engine: runtime.Runtime) -> None:
    """Write the report; a run that is complete is worth more than its page, so a failure is only told."""
    try:
        from captune.report.page import write_report

        write_report([target])
    except Exception as error:
        engine.say(f"The run is saved, but its report could not be made: {type(error).__name__}: {error}")


def _key(plan: Plan, environment: dict[str, Any]) -> str:
    """Return a digest of everything that the training depends on; where it runs and what it is called do not count."""
    settings = {key: value for key, value in plan.all_settings().items() if key not in NO_RESULT}
    task = plan.task
    facts = {
        "settings": settings,
        "names": list(task.vocabulary.names),
        "labels": [[task.labeled.images.name(i), int(label)] for i, label in enumerate(task.labeled.labels)],
        "target_classes": task.target_classes.tolist(),
        "data": environment["data_fingerprint"],
        "weights": environment["backbone_fingerprint"],
        "versions": environment["versions"],
    }
    return digest_of(facts)
