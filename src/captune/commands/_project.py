"""What adapt and audit work on: inputs and settings from a project file, flags and --set."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captune.commands._shared import given_settings
from captune.core.errors import InputError, raise_all
from captune.core.text import shown

INPUTS = ("images", "classes", "labels", "out")
FLAGS = ("overwrite", "resume", "quiet", "progress")
"""Arguments of `captune.adapt` that are no settings: what one command does, not what a run is."""


def read_project(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and settings from --config, then flags, then --set; later ones take precedence."""
    from captune.core import settings

    values: dict[str, Any] = {}
    if options.config:
        values = settings.resolve_paths(settings.read_yaml(options.config), Path(options.config).parent)
    flags = {name: getattr(options, name) for name in INPUTS}
    values |= {name: value for name, value in flags.items() if value is not None}
    values |= given_settings(options) | settings.parse_overrides(options.set)
    inputs = {name: values.pop(name, None) for name in INPUTS}
    raise_all(_misplaced(inputs, values), "These settings cannot be used")
    missing = [name for name in ("images", "classes") if inputs[name] is None]
    if missing:
        flag = {"images": "as the first argument", "classes": "with --classes"}
        ways = " and ".join(f"{name} {flag[name]}" for name in missing)
        raise InputError(f"Nothing to work on: pass {ways}, or write them in the --config file.")
    return inputs, values


def _misplaced(inputs: dict[str, Any], values: dict[str, Any]) -> Iterator[str]:
    """Yield what a project file or --set says that cannot be meant."""
    out = inputs["out"]
    if out is not None and (not isinstance(out, str) or "\0" in out):
        yield f"out = {shown(out)}: expected the path of a folder."
    for name in (name for name in FLAGS if name in values):
        yield f"{name!r} is not a setting" + (f": pass --{name}." if name != "progress" else ".")
