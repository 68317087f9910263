"""captune audit: names that mislead and classes that collide, without training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from captune.commands._options import add_settings, values


def add(commands: Any) -> None:  # noqa: ANN401 (argparse keeps this class private)
    """Declare the command."""
    words = commands.add_parser(
        "audit", help="find names that mislead and classes that collide, without training", allow_abbrev=False
    )
    words.add_argument("images", metavar="IMAGES", help="folder, CSV/Parquet manifest, or text file of paths")
    words.add_argument("--labels", metavar="folders|CSV", help="known classes, to measure the audit against")
    add_settings(words, "audit folder to write (default: captune-audit)")


def run(options: argparse.Namespace) -> None:
    """Audit, save what was found and show it."""
    from captune.auditing import screen
    from captune.auditing.audit import audit

    out = options.out or "captune-audit"
    found = audit(
        options.images, options.classes, labels=options.labels, out=out, overwrite=options.overwrite, **values(options)
    )
    screen.show(found.facts, Path(out))
