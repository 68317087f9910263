"""The plan of a run: all input is checked before any weights are loaded, and all problems are reported at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from captune.backbones.base import Backbone
from captune.backbones.image import second_id
from captune.backbones.joined import Joined
from captune.backbones.precomputed import Precomputed
from captune.core import registry
from captune.core.arrays import unit_rows
from captune.core.errors import InputError, ProblemList, UnknownNameError, nearest, raise_all
from captune.core.files import is_file, is_folder
from captune.core.runtime import Runtime
from captune.core.settings import NO_RESULT, RunSettings, build_run, named_models, plain
from captune.data.images import ImageCollection
from captune.data.inputs import Images, collect_images, describe_source
from captune.data.labels import new_names, read_labels, rename_classes
from captune.data.precomputed import ClassTexts, Embeddings, is_array_file, split_key
from captune.data.task import AdaptationTask, make_task
from captune.data.vocabulary import read_classes
from captune.describers.base import Describer, describer_of, open_describer
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_classes, embed_images
from captune.embeddings.lazy_backbone import is_remembered, open_backbone
from captune.methods.base import Method
from captune.mixture.second_encoder import choose_weight

PRECOMPUTED = "precomputed"
"""The backbone of a run in which images and texts are embedded already."""
EXAMPLES: dict[registry.Role, str] = {"backbones": RunSettings.backbone, "describers": "file:descriptions.yaml"}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that a run is given, checked: its task, all of its images, and where images, classes and labels were.

    Backbone, second encoder and describer are objects in memory, or None if the settings name them or there are none;
    class texts are None if the backbone embeds them.
    """

    settings: RunSettings
    method: Method
    task: AdaptationTask
    images: ImageCollection
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    backbone: Backbone | None = None
    class_texts: ClassTexts | None = None
    describer: Describer | None = None
    second: Backbone | None = None

    @property
    def is_embedded(self) -> bool:
        """Return whether images and texts are embedded already, so that no backbone is loaded."""
        return self.settings.backbone == PRECOMPUTED and isinstance(self.images, Embeddings)

    @property
    def cache(self) -> EmbeddingCache:
        """Return the cache that the settings name, or the user's."""
        return EmbeddingCache.of(self.settings.cache)

    def all_settings(self) -> dict[str, Any]:
        """Return the settings of the run and its method as one flat mapping, like a settings file."""
        return {**dataclasses.asdict(self.settings), **dataclasses.asdict(self.method.settings)}

    def training_facts(self) -> dict[str, Any]:
        """Return everything that training depends on besides images, weights and library versions."""
        labeled = self.task.labeled
        return {
            "settings": {key: value for key, value in self.all_settings().items() if key not in NO_RESULT},
            "names": list(self.task.vocabulary.names),
            "descriptions": [[c, list(texts)] for c, texts in self.task.vocabulary.descriptions.items()],
            "labels": [[labeled.images.name(i), int(label)] for i, label in enumerate(labeled.labels)],
            "target_classes": self.task.target_classes.tolist(),
        }

    def check_backbone(self) -> None:
        """Check that the backbone exists and supports the method's tuner, without loading weights."""
        tuner = getattr(self.method.settings, "tuner", "")
        is_embedded = {"image": isinstance(self.images, Embeddings), "text": self.class_texts is not None}
        for side in sorted(_prompted(tuner)):
            if is_embedded[side]:
                raise InputError(
                    f"The tuner {tuner!r} trains prompts inside the {side} encoder, which embeddings have passed "
                    "already. Use the preset 'quick', or pass images and class names with a backbone."
                )
        if not self.is_embedded:
            check_backbone(self.settings.backbone, tuner, self.cache, self.backbone)
        if self.settings.second_encoder and self.second is None:
            check_backbone(second_id(self.settings.second_encoder), cache=self.cache)

    def open_backbone(self, engine: Runtime) -> Backbone:
        """Return the backbone in memory or the one that the settings name, joined with a second encoder if it helps."""
        second, first = self._open_second(), self.backbone
        if first is None and not self.is_embedded:
            first = open_backbone(self.settings.backbone, self.cache)
        if self.class_texts is not None:
            first = Precomputed(self.class_texts, first)
        assert first is not None  # embeddings come with class texts, or with the backbone of a run
        first = first.to(engine.device)
        if second is None:
            return first
        weight = self.settings.second_weight
        if weight < 0:
            whole = Joined(first, second, 1.0).to(engine.device)
            images = embed_images(whole, self.images, self.cache, engine, self.settings.batch_size).vectors
            spaces = (unit_rows(images[:, : first.embed_dim]), unit_rows(images[:, first.embed_dim :]))
            weight = choose_weight(*spaces, embed_classes(first, self.task.vocabulary), first.logit_scale)
            engine.say(
                f"The second encoder is used with weight {weight:g}."
                if weight
                else "The second encoder is not used: it does not agree better with the classes than the first."
            )
        return Joined(first, second, weight).to(engine.device) if weight else first

    def _open_second(self) -> Backbone | int | None:
        """Return the second encoder, only its width if its embeddings are given, or None."""
        if isinstance(self.images, Embeddings):
            return None if self.images.second is None else int(self.images.second.shape[1])
        if self.second is not None or not self.settings.second_encoder:
            return self.second
        return open_backbone(second_id(self.settings.second_encoder), self.cache)

    def open_describer(self) -> Describer:
        """Return the describer in memory, or the one that the settings name."""
        return self.describer or open_describer(self.settings.describer, self.cache.folder)


def make_plan(images: Images, classes: Any, labels: Any, settings: Mapping[str, Any]) -> Plan:  # noqa: ANN401
    """Read and check settings, class names, images and labels; one error lists all problems."""
    problems = ProblemList()
    collect = problems.collect
    values = {name: plain(value) for name, value in settings.items()}
    if isinstance(settings.get("describer"), Path):
        values["describer"] = f"file:{settings['describer']}"
    backbone, describer, second = collect(lambda: _take_models(values)) or (None, None, None)
    root, column = values.get("root") or None, str(values.get("image_column") or "")
    found = collect(lambda: collect_images(images, root, column, single=False))
    texts = collect(lambda: read_class_texts(classes))
    is_embedded = isinstance(found, Embeddings) or texts is not None
    if isinstance(found, Embeddings) and values.get("second_encoder"):
        problems.append(
            "The images are embeddings, which a second encoder cannot see. Pass its embeddings of the same images: "
            "captune.Embeddings(vectors, second=...)"
        )
    if texts is not None:
        problems += _problems_of_texts(texts, values, found, describer)
        values["template"] = "{}"  # the text of a class is found by its name
    template = str(values.get("template", RunSettings.template))
    vocabulary = collect(lambda: read_classes(classes if texts is None else texts.names, template))
    rename, merge = collect(lambda: _take_names(values)) or ({}, {})
    if vocabulary and (rename or merge):
        named = vocabulary
        vocabulary = collect(lambda: rename_classes(named, rename, merge, embedded=texts is not None))
    if is_embedded and values.get("backbone", PRECOMPUTED) == PRECOMPUTED:
        values["backbone"] = collect(lambda: _backbone_of(found, texts)) or PRECOMPUTED
    built = collect(lambda: _build(values, "quick" if is_embedded else ""))
    is_known = {"backbones": backbone is not None or values.get("backbone") == PRECOMPUTED, "describers": describer}
    for role in EXAMPLES:
        if not is_known[role]:
            collect(lambda role=role: _check_id(role, values))  # type: ignore[misc]
    known = None
    if labels is not None and vocabulary and found:
        known = collect(lambda: read_labels(labels, found, vocabulary.names, new_names(rename, merge)))
        if known is not None and not (known >= 0).any():
            problems.append(f"The labels {describe_source(labels)!r} are all empty. Leave them out, or correct them.")
    if len(problems) == 1:
        raise InputError(problems[0])
    raise_all(problems, "Cannot start this run")
    assert built and vocabulary and found  # noqa: PT018 (there were no problems)
    run_settings, method = built
    task = make_task(vocabulary, found, known, labeled_are_complete=run_settings.target_classes == "auto")
    given = {"images": images, "classes": classes, "labels": labels}
    sources = {what: _kept_source(what, value) for what, value in given.items() if value is not None}
    if rename or merge:
        sources["renamed"] = json.dumps(new_names(rename, merge), ensure_ascii=False)
    return Plan(run_settings, method, task, found, sources, backbone, texts, describer, second)


def _kept_source(what: str, value: object) -> str:
    """Return where an input came from, with an absolute path, so that a run means the same files everywhere."""
    text = describe_source(value)
    if not isinstance(value, (str, Path)) or text == "folders":
        return text
    path = split_key(text)[0]
    return str(Path(text).absolute()) if what != "classes" or is_file(path) or is_folder(path) else text


def _take_names(values: dict[str, Any]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Take the new names of classes out of the settings: they change class names and labels, but no method."""
    rename, merge = values.pop("rename", None) or {}, values.pop("merge", None) or {}
    try:
        renamed = {str(old): str(new) for old, new in rename.items()}
        listed = {new: names.split(",") if isinstance(names, str) else names for new, names in merge.items()}
        merged = {str(new): [str(name).strip() for name in names] for new, names in listed.items()}
    except (AttributeError, TypeError):
        raise InputError(
            f"Expected rename={{'old': 'new'}} and merge={{'new': ['a', 'b']}}, got {rename!r} and {merge!r}."
        ) from None
    return renamed, merged


def _take_models(values: dict[str, Any]) -> tuple[Backbone | None, Describer | None, Backbone | None]:
    """Return the models and the describer that are Python objects, and put their ids in the settings."""
    models: list[Backbone | None] = []
    for key, function in (("backbone", "wrap"), ("second_encoder", "wrap_image_encoder")):
        model = values.get(key, "")
        if not isinstance(model, (str, Backbone)):
            del values[key]
            raise InputError(
                f"{key}: expected an id or captune.{function}(model, processor), got {type(model).__name__}."
            )
        models.append(model if isinstance(model, Backbone) else None)
        if isinstance(model, Backbone):
            values[key] = model.identifier
        elif model in (named := named_models()):
            values[key] = named[model].id
            if key == "backbone":
                values.setdefault("template", named[model].template or RunSettings.template)
    describer = describer_of(values.get("describer"))
    if describer is not None:
        values["describer"] = f"{registry.IN_MEMORY}{describer.argument or type(describer).__name__}"
    return models[0], describer, models[1]


def read_class_texts(classes: object) -> ClassTexts | None:
    """Return text embeddings that are given as classes, or None for names."""
    if isinstance(classes, (str, Path)) and is_array_file(classes):
        return ClassTexts.from_file(classes)
    return classes if isinstance(classes, ClassTexts) else None


def _problems_of_texts(
    texts: ClassTexts, values: Mapping[str, Any], images: ImageCollection | None, describer: Describer | None
) -> Iterator[str]:
    """Yield what cannot be done with class texts that are embedded already."""
    if values.get("template", "{}") != "{}":
        yield "The class texts are embedded already, so a template cannot change them. Leave it out."
    if describer is not None or values.get("describer", "none") != "none":
        yield (
            "Descriptions need a text encoder, but the class texts are embedded already. Pass class names and a "
            "backbone, or embed the descriptions yourself and pass their mean as the text of a class."
        )
    if isinstance(images, Embeddings) and images.width != texts.width:
        yield (
            f"The embeddings have width {images.width}, but the class texts have width {texts.width}. Use embeddings "
            "of the same model."
        )


def _backbone_of(images: ImageCollection | None, texts: ClassTexts | None) -> str:
    """Return the backbone of what is embedded already; the default one would rarely be right."""
    if texts is None and isinstance(images, Embeddings) and images.made_by:
        return images.made_by
    if texts is None:
        raise InputError(
            "Embeddings need class texts of the same model: pass captune.ClassTexts (or an .npz file with names and "
            "texts) as classes, or the backbone that made the embeddings."
        )
    if images is not None and not isinstance(images, Embeddings):
        raise InputError("The class texts are embeddings: pass the backbone that made them to embed the images too.")
    return PRECOMPUTED


def plan_for_task(task: AdaptationTask, settings: Mapping[str, Any], texts: ClassTexts | None = None) -> Plan:
    """Check settings for an existing task, whose template takes precedence; with `texts`, images are embeddings."""
    if type(task) is not AdaptationTask:  # a subclass could carry the true labels
        raise InputError(f"Expected an AdaptationTask, got {type(task).__name__}.")
    values = {**settings, "template": task.vocabulary.templates[0]}
    built = _build(values)
    for role in EXAMPLES:
        _check_id(role, values)
    if texts is not None:
        raise_all(_problems_of_texts(texts, values, task.unlabeled, None), "Cannot start this run")
    return Plan(*built, task, task.unlabeled + task.labeled.images, class_texts=texts)


def _build(settings: Mapping[str, Any], default_preset: str = "") -> tuple[RunSettings, Method]:
    name = str(settings.get("method", RunSettings.method))
    method_class: type[Method] = registry.load("methods", name)
    values = with_preset(method_class, settings, default_preset)
    run_settings, method_settings = build_run(values, method_class.Settings, lambda key: _has_it(key, name))
    return run_settings, method_class(method_settings)


def change_settings(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[RunSettings, Method]:
    """Return the settings of a run with changes; another method has none of the old method's settings."""
    name = str(changes.get("method") or stored["method"])
    method_class: type[Method] = registry.load("methods", name)
    own = {field.name for field in dataclasses.fields(RunSettings)} - {"preset"}
    if stored["method"] == name:
        own |= {"preset", *(field.name for field in dataclasses.fields(method_class.Settings))}
    return _build({key: value for key, value in stored.items() if key in own} | {**changes, "method": name}, "quick")


def _has_it(key: str, method: str) -> str:
    """Return which other methods have a setting that this one does not have, as a sentence."""
    others = {name: registry.load("methods", name).Settings for name in registry.names("methods")}
    having = [name for name, cls in others.items() if any(field.name == key for field in dataclasses.fields(cls))]
    return f" It is a setting of {', '.join(having)}, not of {method}." if having else ""


def _check_id(role: registry.Role, settings: Mapping[str, Any]) -> None:
    key = role.removesuffix("s")
    registry.split_id(role, str(settings.get(key, getattr(RunSettings, key))), EXAMPLES[role])


def with_preset(method_class: type[Method], settings: Mapping[str, Any], default: str = "") -> dict[str, Any]:
    """Return the settings on top of a preset: the given one, the default, or the one that suits this machine."""
    presets = method_class.presets
    name = settings.get("preset") or default
    if not presets:
        return dict(settings)
    if not name:
        import torch

        name = "full" if torch.cuda.is_available() or torch.backends.mps.is_available() else "quick"
    if not isinstance(name, str) or name not in presets:
        hint = nearest(str(name), presets)
        raise UnknownNameError(f"This method has no preset {name!r}.{hint} Available: {', '.join(presets)}.")
    return {**presets[name], **settings, "preset": name}


def check_backbone(
    identifier: str, tuner: str = "", cache: EmbeddingCache | None = None, loaded: Backbone | None = None
) -> None:
    """Check the id of a backbone, and that it supports the prompts of a tuner, without loading its weights."""
    if loaded is not None:
        supported = loaded.prompted_sides()
    else:
        source, name = registry.split_id("backbones", identifier, RunSettings.backbone)
        backbone_class = registry.load("backbones", source)
        if cache is None or not is_remembered(identifier, cache):  # otherwise, it has been loaded before
            backbone_class.check(name)
        supported = backbone_class.prompt_towers(name)
    if not _prompted(tuner) <= supported:
        usable = (name for name in registry.names("tuners") if _prompted(name) <= supported)
        raise InputError(
            f"The backbone {identifier!r} does not support the prompts of the tuner {tuner!r}. Set tuner to one of: "
            f"{', '.join(usable)}."
        )


def _prompted(tuner: str) -> frozenset[str]:
    """Return the towers that a tuner trains prompts in."""
    return registry.load("tuners", tuner).prompted_towers if tuner else frozenset()
