"""The plan of a run: all input is checked before any weights are loaded, and all problems are reported at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from captune.backbones.base import Backbone
from captune.core import registry
from captune.core.errors import InputError, ProblemList, UnknownNameError, nearest, raise_all
from captune.core.settings import NO_RESULT, RunSettings, build_run
from captune.data.images import ImageCollection, find_images, no_usable_image, read_labels
from captune.data.task import AdaptationTask, make_task
from captune.data.vocabulary import Vocabulary, read_class_names
from captune.methods.base import Method

EXAMPLES: dict[registry.Role, str] = {"backbones": RunSettings.backbone, "describers": "file:descriptions.yaml"}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings, method, task and images of a run; `sources` records where images, classes and labels came from."""

    settings: RunSettings
    method: Method
    task: AdaptationTask
    images: ImageCollection
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def all_settings(self) -> dict[str, Any]:
        """Return the settings of the run and its method as one flat mapping, like a settings file."""
        return {**dataclasses.asdict(self.settings), **dataclasses.asdict(self.method.settings)}

    def training_facts(self) -> dict[str, Any]:
        """Return everything that training depends on besides images, weights and library versions."""
        labeled = self.task.labeled
        return {
            "settings": {key: value for key, value in self.all_settings().items() if key not in NO_RESULT},
            "names": list(self.task.vocabulary.names),
            "labels": [[labeled.images.name(i), int(label)] for i, label in enumerate(labeled.labels)],
            "target_classes": self.task.target_classes.tolist(),
        }


def make_plan(
    images: str | Path, classes: str | Path | Sequence[str], labels: str | Path | None, settings: Mapping[str, Any]
) -> Plan:
    """Read and check settings, class names, images and labels; one error lists all problems."""
    problems = ProblemList()
    collect = problems.collect
    built = collect(lambda: _build(settings))
    for role in EXAMPLES:
        collect(lambda role=role: _check_id(role, settings))  # type: ignore[misc]
    template, root = str(settings.get("template", RunSettings.template)), settings.get("root")
    vocabulary = collect(lambda: Vocabulary(read_class_names(classes), (template,)))
    found = collect(lambda: _find(images, str(root) if root else None))
    known = None
    if labels is not None and vocabulary and found:
        known = collect(lambda: read_labels(labels, found, vocabulary.names))
    if len(problems) == 1:
        raise InputError(problems[0])
    raise_all(problems, "Cannot start this run")
    assert built and vocabulary and found  # noqa: PT018 (there were no problems)
    run_settings, method = built
    task = make_task(vocabulary, found, known, only_unlabeled_classes=run_settings.target_classes == "auto")
    given = {"images": images, "classes": classes, "labels": labels}
    sources = {
        what: str(value) if isinstance(value, (str, Path)) else ",".join(value)
        for what, value in given.items()
        if value is not None
    }
    return Plan(run_settings, method, task, found, sources)


def plan_for_task(task: AdaptationTask, settings: Mapping[str, Any]) -> Plan:
    """Check settings for an existing task, whose template takes precedence over the one in the settings."""
    if type(task) is not AdaptationTask:  # a subclass could carry the true labels
        raise InputError(f"Expected an AdaptationTask, got {type(task).__name__}.")
    values = {**settings, "template": task.vocabulary.templates[0]}
    built = _build(values)
    for role in EXAMPLES:
        _check_id(role, values)
    return Plan(*built, task, task.unlabeled + task.labeled.images)


def _build(settings: Mapping[str, Any]) -> tuple[RunSettings, Method]:
    method_class: type[Method] = registry.load("methods", str(settings.get("method", RunSettings.method)))
    run_settings, method_settings = build_run(with_preset(method_class, settings), method_class.Settings)
    return run_settings, method_class(method_settings)


def _check_id(role: registry.Role, settings: Mapping[str, Any]) -> None:
    key = role.removesuffix("s")
    registry.split_id(role, str(settings.get(key, getattr(RunSettings, key))), EXAMPLES[role])


def _find(images: str | Path, root: str | None) -> ImageCollection:
    found = find_images(images, root)
    if len(found) == 0:
        raise InputError(no_usable_image(found, {}))
    return found


def with_preset(method_class: type[Method], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings on top of a preset: the given one, or the one that suits this machine."""
    presets = method_class.presets
    name = settings.get("preset") or ""
    if not presets:
        return dict(settings)
    if not name:
        import torch

        name = "full" if torch.cuda.is_available() or torch.backends.mps.is_available() else "quick"
    if not isinstance(name, str) or name not in presets:
        hint = nearest(str(name), presets)
        raise UnknownNameError(f"This method has no preset {name!r}.{hint} Available: {', '.join(presets)}.")
    return {**presets[name], **settings, "preset": name}


def check_backbone(identifier: str, tuner: str = "") -> None:
    """Check the id of a backbone, and that it supports the prompts of a tuner, without loading its weights."""
    source, name = registry.split_id("backbones", identifier, RunSettings.backbone)
    backbone_class = registry.load("backbones", source)
    backbone_class.check(name)
    if not tuner:
        return
    supported = backbone_class.prompt_towers(name)
    if not registry.load("tuners", tuner).prompted_towers <= supported:
        tuners = {name: registry.load("tuners", name).prompted_towers for name in registry.names("tuners")}
        raise InputError(
            f"The backbone {identifier!r} does not support the prompts of the tuner {tuner!r}. Set tuner to one of: "
            f"{', '.join(name for name, towers in tuners.items() if towers <= supported)}."
        )


def load_backbone(identifier: str) -> Backbone:
    """Load a backbone by its `source:name` id."""
    source, name = registry.split_id("backbones", identifier, RunSettings.backbone)
    backbone: Backbone = registry.load("backbones", source).load(name)
    return backbone
