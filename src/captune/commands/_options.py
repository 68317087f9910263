"""Options that several commands share, and the settings they add up to."""

from __future__ import annotations

import argparse
from typing import Any

FLAGS = ("method", "preset", "backbone", "template", "describer", "domain", "seed", "workers", "root")


def add_settings(words: argparse.ArgumentParser, out: str) -> None:
    """Declare what adapt and audit are told alike."""
    words.add_argument(
        "--classes", required=True, metavar="FILE|a,b,c", help="text or YAML file, comma list, or folder of sub-folders"
    )
    words.add_argument("--backbone", metavar="ID", help="encoder pair as source:name (see: captune list backbones)")
    words.add_argument("--template", help="sentence with one {} for the class name")
    words.add_argument(
        "--describer", metavar="ID", help="who describes misleading names: openai:MODEL, file:YAML, none"
    )
    words.add_argument("--domain", metavar="PHRASE", help="what the images show, e.g. 'a satellite photo of {}'")
    words.add_argument("--seed", type=int, help="seed of everything random")
    words.add_argument("--workers", type=int, help="processes that decode images")
    words.add_argument("--root", help="folder that manifest paths may not lead out of")
    words.add_argument("--config", metavar="YAML", help="settings file")
    words.add_argument("--set", action="append", default=[], metavar="key=value", help="one setting; may be repeated")
    words.add_argument("--out", metavar="FOLDER", help=out)
    words.add_argument("--overwrite", action="store_true", help="replace what is in --out")


def values(options: argparse.Namespace) -> dict[str, Any]:
    """Return settings from the file, then the flags, then --set: the later ones win."""
    from captune import settings

    given: dict[str, Any] = settings.read_yaml(options.config) if options.config else {}
    given |= {flag: getattr(options, flag) for flag in FLAGS if getattr(options, flag, None) is not None}
    return given | settings.parse_overrides(options.set)
