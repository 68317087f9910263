"""What adapt and audit work on: inputs and settings from a project file, flags and --set."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from captune.commands._shared import given_settings
from captune.core.errors import InputError

INPUTS = ("images", "classes", "labels", "out")


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
    missing = [name for name in ("images", "classes") if inputs[name] is None]
    if missing:
        flag = {"images": "as the first argument", "classes": "with --classes"}
        ways = " and ".join(f"{name} {flag[name]}" for name in missing)
        raise InputError(f"Nothing to work on: pass {ways}, or write them in the --config file.")
    return inputs, values
