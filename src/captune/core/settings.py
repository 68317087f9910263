"""Settings are frozen dataclasses; YAML and overrides are checked strictly, with all errors at once."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError

from captune.core.errors import InputError, ProblemList, nearest, raise_all

T = TypeVar("T")
NonNegative = Annotated[int, Ge(0)]
Seed = Annotated[int, Ge(0), Le(2**63 - 1)]
Positive = Annotated[int, Ge(1)]
NonNegativeFloat = Annotated[float, Ge(0)]
Rate = Annotated[float, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
ShareBelowOne = Annotated[float, Ge(0), Lt(1)]

DEFAULT_BACKBONE = "hf:openai/clip-vit-base-patch32"


@dataclass(frozen=True)
class RunSettings:
    """What every run is told, whatever its method.

    Attributes:
        method: The adaptation method; `captune list methods` names them.
        backbone: The encoder pair as `source:name`, e.g. hf:openai/clip-vit-base-patch32, dual:folder.
        template: The sentence that a class name is put into, with one {}.
        preset: Named settings of the method: `full` is the paper, `quick` is for machines without a GPU; empty takes
            `full` on a GPU and `quick` on a CPU.
        describer: Who describes classes whose names mislead: openai:MODEL, file:descriptions.yaml or none.
        domain: What the images show, with one {} for the class name, e.g. "a satellite photo of {}".
        target_classes: `auto` lets pseudo-labels name only classes without given labels where some classes have
            given labels and others none; `all` lets them name every class.
        keep_better: Whether zero-shot stays the classifier where adaptation looks harmful, judged without labels.
        seed: Seed of everything random; the same seed gives the same result.
        batch_size: Images that are encoded at once.
        workers: Processes that decode images; -1 takes one for each core, 0 decodes in the main process.
        root: Folder that manifest paths may not lead out of; empty allows any path.
        cache: Folder of the embedding cache; empty takes the user's cache folder.
        accelerator: What computes: auto, cpu, cuda or mps.
        devices: Processes on each machine, one for each GPU (or any number on a CPU); torchrun's number goes before.
        strategy: How several processes work together; auto and ddp are the same.
        num_nodes: Machines that work together, each started with the same command.
        precision: 32-true computes in single precision; bf16-mixed and 16-mixed run the encoders in half precision,
            while what is trained stays in single.
        class_chunk: Class texts that are encoded at once while training; more are encoded in turn, which takes time
            but little memory.
    """

    method: str = "cap"
    backbone: str = DEFAULT_BACKBONE
    template: str = "a photo of a {}"
    preset: str = ""
    describer: str = "none"
    domain: str = "{}"
    target_classes: Literal["auto", "all"] = "auto"
    keep_better: bool = False
    seed: Seed = 0
    batch_size: Positive = 32
    workers: Annotated[int, Ge(-1)] = -1
    root: str = ""
    cache: str = ""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: Positive = 1
    strategy: Literal["auto", "ddp"] = "auto"
    num_nodes: Positive = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    class_chunk: Positive = 1024


WHERE = ("accelerator", "devices", "strategy", "num_nodes", "precision")
"""The settings that say where and how precisely a run computes."""
NO_RESULT = frozenset(("workers", "cache", "accelerator", "devices", "strategy", "num_nodes", "class_chunk"))
"""Settings that change a result by rounding at most, so that a run may be resumed with others."""


def build(cls: type[T], values: Mapping[str, Any], what: str) -> T:
    """Make a settings dataclass from plain values, or raise one error that lists every problem."""
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    problems = [f"no setting {key!r}.{nearest(key, known)}" for key in values if key not in known]
    adapter: TypeAdapter[T] = TypeAdapter(cls)
    given = {key: value for key, value in values.items() if key in known}
    try:
        # Strict JSON rules: no text for numbers, no 1 for true, but lists may become tuples.
        built = adapter.validate_json(json.dumps(given, allow_nan=False), strict=True)
    except ValidationError as error:
        problems += [_problem(cls, entry) for entry in error.errors()]
    except (TypeError, ValueError, RecursionError) as error:
        problems.append(f"a value is neither text, finite number, truth nor list: {error}")
    raise_all(problems, f"These {what} cannot be used")
    return built


def build_run(values: Mapping[str, Any], method_settings: type[T], what: str = "settings") -> tuple[RunSettings, T]:
    """Split flat values into a run's and its method's settings, listing the problems of both at once."""
    run_keys = {field.name for field in dataclasses.fields(RunSettings)}
    own_keys = {field.name for field in dataclasses.fields(method_settings)}  # type: ignore[arg-type]
    known = run_keys | own_keys
    problems = ProblemList(f"no setting {key!r}.{nearest(key, known)}" for key in values if key not in known)
    parts: list[Any] = []
    for cls, keys in ((RunSettings, run_keys), (method_settings, own_keys)):
        own = {key: value for key, value in values.items() if key in keys}
        parts.append(problems.collect(lambda cls=cls, own=own: build(cls, own, what), ""))  # type: ignore[misc]
    raise_all(problems, f"These {what} cannot be used")
    return parts[0], parts[1]


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a settings file; a key that stands twice, or anything but a mapping, is an error."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        content = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 (a safe loader, made strict below)
    except OSError as error:
        raise InputError(f"The settings file {str(path)!r} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date such as 2024-99-99 is a ValueError
        raise InputError(f"The settings file {str(path)!r} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InputError(f"The settings file {str(path)!r} must hold 'key: value' lines.")
    return content


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Turn `key=value` words into values; a value is read as YAML."""
    values: dict[str, Any] = {}
    problems = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            problems.append(f"{pair!r} is not of the form key=value")
            continue
        try:
            values[key.strip()] = yaml.load(text, Loader=_StrictLoader)  # noqa: S506
        except (yaml.YAMLError, ValueError, RecursionError):
            problems.append(f"the value of {pair!r} is not valid YAML; quote it")
    raise_all(problems, "These --set overrides cannot be used")
    return values


def explain(cls: type[Any]) -> dict[str, str]:
    """Return each setting's sentence from the docstrings of the class and those it extends, for --help and docs."""
    entry = re.compile(r"^\s{4,8}(\w+): (.*(?:\n\s{10,}\S.*)*)", flags=re.MULTILINE)
    sections = [(vars(base).get("__doc__") or "").partition("Attributes:")[2] for base in reversed(cls.__mro__)]
    found = [match for section in sections for match in entry.findall(section)]
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in found}


def _problem(cls: type[Any], entry: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in entry["loc"])
    message = str(entry["msg"])
    sentence = explain(cls).get(key.split(".")[0], "")
    meaning = f" {key}: {sentence}" if sentence else ""
    return f"{key} = {entry.get('input')!r}: {message[:1].lower()}{message[1:]}.{meaning}"


class _StrictLoader(yaml.SafeLoader):
    """A safe loader to which a repeated key or an alias is an error, and 1e-3 a number."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases: written out, a few lines of them can stand for a billion words."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases such as *name are not read", event.start_mark)
        return super().compose_node(parent, index)


def _strict_mapping(loader: _StrictLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    repeated = sorted({str(key) for key in keys if keys.count(key) > 1})
    if repeated:
        raise yaml.constructor.ConstructorError(None, None, f"key {repeated[0]!r} stands twice", node.start_mark)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=deep)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _strict_mapping)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
