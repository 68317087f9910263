"""The straight line: images and class names in, a saved and measurable classifier out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from captune import registry, runtime
from captune.backbones.base import Backbone
from captune.data.images import ImageCollection, find_images, read_labels
from captune.data.task import AdaptationTask, make_task
from captune.data.vocabulary import Vocabulary, read_class_names
from captune.embedding_cache import EmbeddingCache, default_folder
from captune.errors import InputError, raise_all
from captune.methods.base import Context, Method
from captune.results.classifier import Classifier
from captune.results.prediction import no_usable_image, predict_collection
from captune.results.run import AdaptationRun, claim_folder
from captune.settings import RunSettings, build_run

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Plan:
    """A checked order: everything that can be wrong before weights are loaded has been looked at."""

    settings: RunSettings
    method: Method
    task: AdaptationTask
    images: ImageCollection


def adapt(
    images: str | Path,
    classes: str | Path | Sequence[str],
    *,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,  # noqa: ANN401 (checked against the settings dataclasses)
) -> AdaptationRun:
    """Adapt a backbone to images without labels and return the run; with `out`, also save it as a folder.

    Keyword settings are those of every run (method, backbone, template, seed, ...) and those of the method.
    """
    started = time.time()
    plan = make_plan(images, classes, labels, settings)
    check_backbone(plan.settings.backbone)
    target = claim_folder(out, overwrite) if out is not None else None

    workers = None if plan.settings.workers < 0 else plan.settings.workers
    engine = runtime.start(seed=plan.settings.seed, workers=workers, quiet=quiet)
    cache = EmbeddingCache(Path(plan.settings.cache) if plan.settings.cache else default_folder())
    context = Context(engine, cache, plan.settings.batch_size)
    backbone = load_backbone(plan.settings.backbone).to(engine.device)

    tuner = plan.method.adapt(plan.task, backbone, context)
    classifier = Classifier.from_tuner(tuner)
    embedded = None if tuner.edits_images else context.embed(backbone, plan.images)
    predictions, set_aside = predict_collection(
        classifier, plan.images, cache, engine, plan.settings.batch_size, embedded
    )
    if set_aside:
        engine.say(f"{len(set_aside)} of {len(plan.images)} images were set aside because they cannot be read.")

    run = AdaptationRun(
        settings={**dataclasses.asdict(plan.settings), **dataclasses.asdict(plan.method.settings)},
        images=plan.images,
        predictions=predictions,
        set_aside=set_aside,
        classifier=classifier,
        environment={
            "versions": runtime.versions(),
            "seed": plan.settings.seed,
            "data_fingerprint": plan.images.fingerprint,
            "backbone_fingerprint": backbone.fingerprint(),
            "device": str(engine.device),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "seconds": round(time.time() - started, 3),
        },
        rounds=context.rounds,
    )
    if target is not None and engine.is_writer:
        run.save(target)
    return run


def make_plan(
    images: str | Path, classes: str | Path | Sequence[str], labels: str | Path | None, settings: dict[str, Any]
) -> Plan:
    """Read and check settings, names, images and labels; one error lists all that is wrong with them."""
    problems: list[str] = []
    method_name = str(settings.get("method", RunSettings.method))
    method_class = _collect(problems, lambda: registry.load("methods", method_name))
    own_settings = method_class.Settings if method_class else None
    built = _collect(problems, lambda: build_run(settings, own_settings)) if own_settings else None
    backbone, template = (str(settings.get(key, getattr(RunSettings, key))) for key in ("backbone", "template"))
    _collect(problems, lambda: registry.split_id("backbones", backbone, RunSettings.backbone))
    vocabulary = _collect(problems, lambda: Vocabulary(read_class_names(classes), (template,)))
    found = _collect(problems, lambda: _find(images, settings.get("root")))
    known = None
    if labels is not None and vocabulary and found:
        known = _collect(problems, lambda: read_labels(labels, found, vocabulary.names))
    if len(problems) == 1:
        raise InputError(problems[0])
    raise_all(problems, "This run cannot start")
    assert built and vocabulary and found and method_class  # noqa: PT018 (nothing was wrong, so all are there)
    run_settings, method_settings = built
    return Plan(run_settings, method_class(method_settings), make_task(vocabulary, found, known), found)


def check_backbone(identifier: str) -> None:
    """Check a backbone's id without loading its weights."""
    source, name = registry.split_id("backbones", identifier, RunSettings.backbone)
    registry.load("backbones", source).check(name)


def load_backbone(identifier: str) -> Backbone:
    """Load a backbone by its `source:name` id."""
    source, name = registry.split_id("backbones", identifier, RunSettings.backbone)
    backbone: Backbone = registry.load("backbones", source).load(name)
    return backbone


def _find(images: str | Path, root: object) -> ImageCollection:
    found = find_images(images, str(root) if root else None)
    if len(found) == 0:
        raise InputError(no_usable_image(found, {}))
    return found


def _collect(problems: list[str], step: Callable[[], T]) -> T | None:
    try:
        return step()
    except InputError as error:
        problems.append(str(error))
        return None
