"""captune audit: find misleading class names and confused classes, without training."""

from __future__ import annotations

import argparse
from pathlib import Path

from captune.commands._project import read_project
from captune.commands._shared import IMAGES_HELP, LABELS_HELP, add_run_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("images", metavar="IMAGES", nargs="?", help=IMAGES_HELP)
    parser.add_argument("--labels", metavar="folders|CSV", help=f"labels to measure the audit: {LABELS_HELP}")
    add_run_options(parser, "audit folder (default: captune-audit)")


def run(options: argparse.Namespace) -> None:
    """Audit, save and print the result."""
    from captune.auditing.audit import audit
    from captune.auditing.page import print_audit
    from captune.commands._screen import Screen

    inputs, settings = read_project(options)
    inputs["out"] = inputs["out"] or "captune-audit"
    result = audit(**inputs, overwrite=options.overwrite, quiet=options.quiet, **settings)
    print_audit(result.facts, Path(inputs["out"]), Screen(highlight=False, markup=False))
