"""Settings: frozen dataclasses from YAML and overrides, checked strictly; named models; YAML without surprises."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError

from captune.core.errors import InputError, ProblemList, nearest, raise_all
from captune.core.text import shown

T = TypeVar("T")
NonNegative = Annotated[int, Ge(0)]
Seed = Annotated[int, Ge(0), Le(2**63 - 1)]
Positive = Annotated[int, Ge(1)]
NonNegativeFloat = Annotated[float, Ge(0)]
Rate = Annotated[float, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
ShareBelowOne = Annotated[float, Ge(0), Lt(1)]

MOST_CHARACTERS = 1 << 26
"""Longer YAML files are not read."""
_YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)
"""What reading can raise; a date such as 2024-99-99 is a ValueError."""
_adapter_of = cache(TypeAdapter[Any])
OWN_MODELS = "CAPTUNE_MODELS"
"""The environment variable that names a file with more models."""
DEFAULT_BACKBONE = "hf:openai/clip-vit-base-patch32"


@dataclass(frozen=True)
class RunSettings:
    """Settings of every run, whatever its method.

    Attributes:
        method: Adaptation method; see `captune list methods`. `auto` chooses one and says why.
        backbone: Encoder pair as `source:name`, e.g. hf:openai/clip-vit-base-patch32 or dual:folder.
        template: Sentence with one {} for the class name, or {columns} of the table of classes.
        preset: Preset of the method: `full` to train as published, `quick` for machines without a GPU; by default,
            `full` on a GPU and `quick` on a CPU, and the first line says which.
        describer: Source of descriptions for misleading class names: openai:MODEL, file:descriptions.yaml or none.
        domain: What the images show, with one {} for the class name, e.g. "a satellite photo of {}".
        target_classes: Classes that unlabeled images may have: `all`, or with `auto` (--complete-classes), only those
            without labels, because every image of the others is labeled.
        keep_better: Whether to keep zero-shot unless adaptation looks helpful, judged without labels; with labeled
            images, the adapted classifier is always kept.
        reject: Share of the images, those that fit the names least, whose prediction becomes "none of these".
        seed: Random seed; the same seed gives the same result.
        batch_size: Number of images that are encoded at once.
        workers: Number of processes that decode images; -1 for one per core, 0 to decode in the main process.
        image_column: Column of a table or dataset that contains the images or their paths; empty to find it.
        root: Folder that all paths in manifests must be in; empty for any path.
        cache: Folder of the embedding cache; empty for the user's cache folder.
        accelerator: Device type: auto, cpu, cuda or mps.
        devices: Number of processes of a command, one per GPU, or any number on a CPU; torchrun takes precedence.
        precision: 32-true for single precision; bf16-mixed and 16-mixed run the encoders in half precision, and
            training stays in single precision.
        second_encoder: Id of a second image encoder beside the backbone, for example hf:facebook/dinov2-small.
        second_weight: Weight of the second encoder's embeddings beside the backbone's; -1 decides it from the images.
        class_chunk: Number of class texts that are encoded at once in training; fewer need less memory, but more time.
    """

    method: str = "auto"
    backbone: str = DEFAULT_BACKBONE
    template: str = "a photo of a {}"
    preset: str = ""
    describer: str = "none"
    domain: str = "{}"
    target_classes: Literal["all", "auto"] = "all"
    keep_better: bool = True
    reject: ShareBelowOne = 0.0
    seed: Seed = 0
    batch_size: Positive = 32
    workers: Annotated[int, Ge(-1)] = -1
    image_column: str = ""
    root: str = ""
    cache: str = ""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: Positive = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    second_encoder: str = ""
    second_weight: Annotated[float, Ge(-1)] = -1.0
    class_chunk: Positive = 1024


WHERE = ("accelerator", "devices", "precision")
"""Settings of devices and precision."""
NO_RESULT = frozenset(("workers", "cache", "accelerator", "devices", "class_chunk"))
"""Settings that change results by rounding at most, so a run can be resumed with different values."""


RETIRED = frozenset(("strategy", "num_nodes", "growth_limit"))
"""Settings of older versions that changed no result; files that have them can still be read."""
OF_AUTHORS: Mapping[str, tuple[Any, ...]] = {
    "recipe": ("paper",),
    "tendency": (None, "paper"),
    "growth": (None, "paper"),
    "scale_margin": (None, True),
    "count_on": (None,),
}
"""Settings of older versions that followed the code of CAP's authors, with the values that followed the paper."""
ARGUMENTS = ("images", "classes", "labels", "out", "overwrite", "resume", "quiet", "progress")
"""Arguments that are not settings, but that a misspelled setting may be meant to be."""


def build(cls: type[T], values: Mapping[str, Any], what: str) -> T:
    """Build a settings dataclass from plain values, or raise one error that lists all problems."""
    if not isinstance(values, Mapping):  # a file may hold anything
        raise InputError(f"These {what} cannot be used: expected 'key: value' lines, got {shown(values)}.")
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    problems = [f"no setting {key!r}.{nearest(key, known)}" for key in values if key not in known]
    given = {key: plain(value) for key, value in values.items() if key in known}
    try:
        # Strict JSON rules: no text for numbers, no 1 for true, but lists may become tuples.
        built: T = _adapter_of(cls).validate_json(json.dumps(given, allow_nan=False), strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        help_of = explain(cls)
        for entry in error.errors():
            key, message = ".".join(map(str, entry["loc"])), str(entry["msg"])
            sentence = help_of.get(key.split(".")[0], "")
            meaning = f" {key}: {sentence}" if sentence else ""
            problems.append(f"{key} = {shown(entry.get('input'))}: {message[:1].lower()}{message[1:]}.{meaning}")
    except (TypeError, ValueError, RecursionError) as error:
        problems.append(f"expected text, finite numbers, true or false, or lists: {error}")
    raise_all(problems, f"These {what} cannot be used")
    return built


def plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value as text, a number or a list: that of a path, or of a scalar or array of NumPy or PyTorch."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value


def build_run(
    values: Mapping[str, Any], method_settings: type[T], explain_unknown: Callable[[str], str] = lambda key: ""
) -> tuple[RunSettings, T]:
    """Build the settings of a run and its method from flat values, or raise one error that lists all problems."""
    run_keys = {field.name for field in dataclasses.fields(RunSettings)}
    own_keys = {field.name for field in dataclasses.fields(method_settings)}  # type: ignore[arg-type]
    known = run_keys | own_keys
    values = {key: value for key, value in values.items() if value not in OF_AUTHORS.get(key, ())}
    unknown = [key for key in values if key not in known | RETIRED]
    gone = " CAP follows the paper only: leave the setting out."
    problems = ProblemList(
        f"no setting {key!r}."
        f"{gone if key in OF_AUTHORS else explain_unknown(key) or nearest(key, known | set(ARGUMENTS))}"
        for key in unknown
    )
    common, own = ({key: value for key, value in values.items() if key in keys} for keys in (run_keys, own_keys))
    run = problems.collect(lambda: build(RunSettings, common, "settings"), "")
    method = problems.collect(lambda: build(method_settings, own, "settings"), "")
    raise_all(problems, "These settings cannot be used")
    assert run is not None and method is not None  # noqa: PT018
    return run, method


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a settings file; duplicate keys, or anything but a mapping, are an error."""
    content = read_yaml_file(path, "settings file")
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InputError(f"The settings file {str(path)!r} must contain 'key: value' lines.")
    return content


def resolve_paths(values: Mapping[str, Any], folder: str | Path) -> dict[str, Any]:
    """Return inputs and settings in which relative paths are relative to a folder; everything else is unchanged.

    Text that may be a name instead of a path is a path if it exists there: classes such as `cat,dog`, backbones such
    as `hf:openai/clip-vit-base-patch32`.
    """

    def inside(path: str) -> str:
        return str(Path(folder) / os.path.expanduser(path))  # noqa: PTH111 (a user without a home is no error here)

    resolved = dict(values)
    for key in ("images", "labels", "out", "root", "cache"):
        value = values.get(key)
        if isinstance(value, str) and value and (key, value) != ("labels", "folders"):
            resolved[key] = inside(value)
        elif key == "images" and isinstance(value, list):
            resolved[key] = [inside(path) if isinstance(path, str) else path for path in value]
    classes = values.get("classes")
    if isinstance(classes, str) and classes and ("," not in classes or os.path.lexists(inside(classes))):
        resolved["classes"] = inside(classes)
    for key in ("backbone", "describer", "second_encoder"):
        source, _, name = str(values.get(key, "")).partition(":")
        if name and (source == "file" or os.path.lexists(inside(name))):
            resolved[key] = f"{source}:{inside(name)}"
    return resolved


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse `key=value` arguments; values are read as YAML."""
    values: dict[str, Any] = {}
    problems = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            problems.append(f"{pair!r} is not of the form key=value")
            continue
        try:
            values[key.strip()] = load_yaml(text)
        except _YAML_ERRORS:
            problems.append(f"the value of {shown(pair)} is not valid YAML; quote it")
    raise_all(problems, "These --set overrides cannot be used")
    return values


def explain(cls: type[Any]) -> dict[str, str]:
    """Return the help text of each setting, from the docstrings of the class and its bases."""
    entry = re.compile(r"^\s{4,8}(\w+): (.*(?:\n\s{10,}\S.*)*)", flags=re.MULTILINE)
    sections = [(vars(base).get("__doc__") or "").partition("Attributes:")[2] for base in reversed(cls.__mro__)]
    found = [match for section in sections for match in entry.findall(section)]
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in found}


@dataclass(frozen=True)
class NamedModel:
    """An encoder with a short name: its id, the template of its texts if it has any, and where it is described."""

    id: str
    template: str = ""
    source: str = ""
    license: str = ""
    note: str = ""


def full_id(identifier: str) -> str:
    """Return the id that a short name stands for; any other text as it is."""
    return identifier if ":" in identifier else named_models().get(identifier, NamedModel(identifier)).id


def named_models() -> dict[str, NamedModel]:
    """Return the models by name; those in the user's file replace others of the same name."""
    own = os.environ.get(OWN_MODELS)
    files = [Path(__file__).with_name("models.yaml"), *([Path(own)] if own else [])]
    entries = {str(name): facts for file in files for name, facts in read_yaml(file).items()}
    return {name: build(NamedModel, facts, f"the model {name!r}") for name, facts in entries.items()}


def load_yaml(text: str, as_text: bool = False) -> Any:  # noqa: ANN401 (anything that YAML can hold)
    """Return the content of YAML text; with `as_text`, every scalar is text, such as a class called "on" or "747"."""
    return yaml.load(text, Loader=_TextLoader if as_text else _StrictLoader)  # noqa: S506 (made strict below)


def read_yaml_file(path: str | Path, what: str, as_text: bool = False) -> Any:  # noqa: ANN401
    """Return the content of a YAML file, or raise an InputError that says what the file should be."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            text = file.read(MOST_CHARACTERS + 1)
        if len(text) > MOST_CHARACTERS:
            raise InputError(f"The {what} {str(path)!r} has more than {MOST_CHARACTERS:,} characters.")
        return load_yaml(text, as_text)
    except OSError as error:
        raise InputError(f"The {what} {str(path)!r} cannot be read: {error.strerror}.") from error
    except _YAML_ERRORS as error:
        # The parser's own message may quote very long lines.
        reason = "\n".join(line[:200] for line in str(error).splitlines()[:8])
        reason = "it is nested too deeply." if isinstance(error, RecursionError) else reason
        raise InputError(f"The {what} {str(path)!r} is not valid YAML: {reason}") from error


class _Strict:
    """Reject duplicate keys, and aliases: a few lines of them can expand to gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node, unless it is an alias."""
        if self.check_event(yaml.AliasEvent):  # type: ignore[attr-defined]
            mark = self.peek_event().start_mark  # type: ignore[attr-defined]
            raise yaml.composer.ComposerError(None, None, "aliases such as *name are not supported", mark)
        return super().compose_node(parent, index)  # type: ignore[misc]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping, unless a key is repeated."""
        keys = [str(self.construct_object(key, deep=True)) for key, _ in node.value]  # type: ignore[attr-defined]
        if len(set(keys)) < len(keys):
            message = f"duplicate key {max(keys, key=keys.count)!r}"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        return super().construct_mapping(node, deep=deep)  # type: ignore[misc]


class _StrictLoader(_Strict, yaml.SafeLoader):
    """A safe loader that reads 1e-3 as a number."""


class _TextLoader(_Strict, yaml.BaseLoader):
    """A loader that reads every scalar as text."""


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
