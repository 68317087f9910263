"""Options that several commands share, and the settings they add up to."""

from __future__ import annotations

import argparse
from typing import Any

WHERE = ("accelerator", "devices", "strategy", "num_nodes", "precision")
FLAGS = (
    "method",
    "preset",
    "keep_better",
    "backbone",
    "template",
    "describer",
    "domain",
    "seed",
    "workers",
    "root",
    *WHERE,
)


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


def add_where(words: argparse.ArgumentParser) -> None:
    """Declare where and how precisely a command computes."""
    words.add_argument("--accelerator", metavar="auto|cpu|cuda|mps", help="what computes (default: auto)")
    words.add_argument("--devices", type=int, metavar="N", help="processes on each machine, one for each GPU")
    words.add_argument("--strategy", metavar="auto|ddp", help="how several processes work together")
    words.add_argument("--num-nodes", type=int, metavar="M", help="machines that work together (see docs/scaling.md)")
    words.add_argument("--precision", metavar="32-true|bf16-mixed|16-mixed", help="precision of the encoders")


def values(options: argparse.Namespace) -> dict[str, Any]:
    """Return settings from the file, then the flags, then --set: the later ones win."""
    from captune.core import settings

    given: dict[str, Any] = settings.read_yaml(options.config) if options.config else {}
    given |= {flag: getattr(options, flag) for flag in FLAGS if getattr(options, flag, None) is not None}
    return given | settings.parse_overrides(options.set)
