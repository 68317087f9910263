"""The plug-in registry: each module in the folder of a role is a plug-in, and the file name is its id."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from captune.core.errors import InputError, UnknownNameError, nearest

Role = Literal["methods", "backbones", "tuners", "describers", "datasets", "exports"]

IN_MEMORY = "memory:"
"""How the id of a model or describer begins that exists only in memory."""

FOLDERS = {role: f"captune.{role}" for role in get_args(Role)} | {"datasets": "captune.benchmark.datasets"}


def names(role: Role) -> list[str]:
    """Return the sorted names of all plug-ins of a role, without importing any of them."""
    return sorted({*_builtin_names(role), *(point.name for point in _third_party(role))})


def summary(role: Role, name: str) -> str:
    """Return the first sentence of a plug-in's module docstring, without importing it."""
    if name not in _builtin_names(role):
        return "third-party plug-in"
    spec = find_spec(f"{FOLDERS[role]}.{name}")
    assert spec is not None and spec.origin is not None  # noqa: PT018
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return docstring.split("\n", 1)[0]


def load(role: Role, name: str) -> type[Any]:
    """Import a plug-in and return its class; the error for an unknown name suggests similar ones."""
    if name in _builtin_names(role):
        return _plugin_class(role, importlib.import_module(f"{FOLDERS[role]}.{name}"))
    for point in _third_party(role):
        if point.name == name:
            return _third_party_class(role, point)
    known = names(role)
    raise UnknownNameError(
        f"No {name!r} in {role}.{nearest(name, known)} Available: {', '.join(known)}. To see them: captune list {role}"
    )


def name_of(role: Role, cls: type[Any]) -> str:
    """Return the name of a plug-in class, as `load` takes it."""
    folder, _, module = cls.__module__.rpartition(".")
    if folder == FOLDERS[role]:
        return module
    for point in _third_party(role):
        with suppress(InputError):  # a plug-in that cannot be imported is not the one in use
            if _third_party_class(role, point) is cls:
                return point.name
    raise UnknownNameError(
        f"{cls.__qualname__} of {cls.__module__} is no entry point in the group captune.{role}: declare it as one."
    )


def split_id(role: Role, identifier: str, example: str) -> tuple[str, str]:
    """Split `source:argument` and check the source, so that `load(role, source)` succeeds."""
    source, _, argument = identifier.partition(":")
    if source in _builtin_names(role):  # without looking for third-party plug-ins, which takes milliseconds
        return source, argument
    known = names(role)
    if identifier.startswith(IN_MEMORY):
        raise UnknownNameError(
            f"{identifier!r} existed only in memory. Pass the object: backbone=captune.wrap(model, processor)."
        )
    if source not in known:
        hint = nearest(source, known) if ":" in identifier else ""
        hint = hint or f" Ids have the form 'source:name', for example {example!r}."
        raise UnknownNameError(
            f"No {source!r} in {role} (from the id {identifier!r}).{hint} Available: {', '.join(known)}."
        )
    return source, argument


def _builtin_names(role: Role) -> list[str]:
    spec = find_spec(FOLDERS[role])
    assert spec is not None
    found = pkgutil.iter_modules(spec.submodule_search_locations)
    return [module.name for module in found if module.name != "base" and not module.name.startswith("_")]


def _third_party(role: Role) -> list[EntryPoint]:
    return list(entry_points(group=f"captune.{role}"))


def _third_party_class(role: Role, point: EntryPoint) -> type[Any]:
    try:
        loaded = point.load()
    except Exception as error:  # importing third-party code can raise anything
        raise InputError(
            f"The third-party plug-in {point.name!r} in {role} ({point.value}) cannot be imported: {error}."
        ) from error
    return _plugin_class(role, loaded) if isinstance(loaded, ModuleType) else loaded


def _plugin_class(role: Role, module: ModuleType) -> type[Any]:
    base: type[Any] = importlib.import_module(f"{FOLDERS[role]}.base").PLUGIN_BASE
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        found = ", ".join(cls.__name__ for cls in classes) or "none"
        raise InputError(
            f"{module.__name__} must define exactly one {base.__name__} class, found: {found}. Others are for _modules."
        )
    return classes[0]
