"""captune accept: keep the labels that are right with a given precision, certified by checked images."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument(
        "--precision", type=float, default=0.95, metavar="P", help="share of right labels (default: 0.95)"
    )
    parser.add_argument("--certainty", type=float, default=0.95, metavar="C", help="of the promise (default: 0.95)")
    parser.add_argument("--out", metavar="FOLDER", help="folder for accepted.csv and certificate.json")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a sentence")


def run(options: argparse.Namespace) -> None:
    """Print what is accepted, or what is missing, and write the accepted labels."""
    from captune.commands._screen import Screen
    from captune.core.files import table, write_json, write_whole
    from captune.review.accept import accepted_rows
    from captune.review.opening import open_session

    session = open_session(options.run, quiet=True)
    found = session.accept(options.precision, options.certainty)
    if options.json:
        sys.stdout.write(json.dumps(found.as_dict(), indent=2) + "\n")
    else:
        screen = Screen(highlight=False, soft_wrap=True)
        screen.print(found.sentence, markup=False)
        if found.n_missing or found.n_more:
            command = (
                f"captune suggest {shlex.quote(options.run)} --for-precision {options.precision:g} --out checks.csv"
            )
            screen.print(f"Images to check: {command}", markup=False)
    if options.out and len(found):
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(
            folder / "accepted.csv", table(("path", "label", "confidence", "source"), accepted_rows(session, found))
        )
        write_json(folder / "certificate.json", found.as_dict())
        if not options.json:
            screen.print(f"{len(found)} labels: {folder / 'accepted.csv'}", markup=False)
