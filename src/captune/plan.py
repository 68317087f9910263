"""A checked order: everything that can be wrong is looked at before weights are loaded, and told at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from captune.backbones.base import Backbone
from captune.core import registry
from captune.core.errors import InputError, UnknownNameError, nearest, raise_all
from captune.core.settings import RunSettings, build_run
from captune.data.images import ImageCollection, find_images, no_usable_image, read_labels
from captune.data.task import AdaptationTask, make_task
from captune.data.vocabulary import Vocabulary, read_class_names
from captune.methods.base import Method

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run will do."""

    settings: RunSettings
    method: Method
    task: AdaptationTask
    images: ImageCollection

    def all_settings(self) -> dict[str, Any]:
        """Return everything that is set, flat, as a settings file would say it."""
        return {**dataclasses.asdict(self.settings), **dataclasses.asdict(self.method.settings)}


def make_plan(
    images: str | Path,
    classes: str | Path | Sequence[str],
    labels: str | Path | None,
    settings: Mapping[str, Any],
) -> Plan:
    """Read and check settings, names, images and labels; one error lists all that is wrong with them."""
    problems: list[str] = []
    method_name = str(settings.get("method", RunSettings.method))
    method_class = _collect(problems, lambda: registry.load("methods", method_name))
    values = _collect(problems, lambda: with_preset(method_class, settings)) if method_class else None
    built = (
        _collect(problems, lambda: build_run(values, method_class.Settings))
        if method_class and values is not None
        else None
    )
    backbone, template, describer = (
        str(settings.get(key, getattr(RunSettings, key))) for key in ("backbone", "template", "describer")
    )
    _collect(problems, lambda: registry.split_id("backbones", backbone, RunSettings.backbone))
    _collect(problems, lambda: registry.split_id("describers", describer, "file:descriptions.yaml"))
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
    task = make_task(vocabulary, found, known, only_unlabeled_classes=run_settings.target_classes == "auto")
    return Plan(run_settings, method_class(method_settings), task, found)


def plan_for_task(task: AdaptationTask, settings: Mapping[str, Any]) -> Plan:
    """Check settings for a task that is there already; its template wins over the one of the settings."""
    if type(task) is not AdaptationTask:  # nothing that carries a truth along
        raise InputError(f"A method is given an AdaptationTask, not {type(task).__name__}.")
    values = {**settings, "template": task.vocabulary.templates[0]}
    method_class: type[Method] = registry.load("methods", str(values.get("method", RunSettings.method)))
    run_settings, method_settings = build_run(with_preset(method_class, values), method_class.Settings)
    registry.split_id("backbones", run_settings.backbone, RunSettings.backbone)
    registry.split_id("describers", run_settings.describer, "file:descriptions.yaml")
    unlabeled, labeled = task.unlabeled, task.labeled.images
    images = unlabeled + labeled
    return Plan(run_settings, method_class(method_settings), task, images)


def with_preset(method_class: type[Method], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings on top of their preset: the one that is named, else the one that fits this machine."""
    presets = method_class.presets
    name = settings.get("preset") or ""
    if not presets:
        return dict(settings)
    if not name:
        import torch

        name = "full" if torch.cuda.is_available() or torch.backends.mps.is_available() else "quick"
    if not isinstance(name, str) or name not in presets:
        hint = nearest(str(name), presets)
        raise UnknownNameError(f"No preset {name!r} of this method.{hint} Available: {', '.join(presets)}.")
    return {**presets[name], **settings, "preset": name}


def check_backbone(identifier: str, tuner: str = "") -> None:
    """Check a backbone's id, and that it carries the prompts of a tuner, without loading its weights."""
    source, name = registry.split_id("backbones", identifier, RunSettings.backbone)
    backbone_class = registry.load("backbones", source)
    backbone_class.check(name)
    if not tuner:
        return
    carried = backbone_class.prompt_towers(name)
    if not registry.load("tuners", tuner).prompted_towers <= carried:
        fitting = [
            other for other in registry.names("tuners") if registry.load("tuners", other).prompted_towers <= carried
        ]
        raise InputError(
            f"The backbone {identifier!r} cannot carry the prompts of the tuner {tuner!r}. "
            f"Tuners that fit it: {', '.join(fitting)}. Choose one with --set tuner=..."
        )


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
