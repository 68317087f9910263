"""captune estimate: estimate the accuracy of a run from images that a person checked."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from captune.commands._shared import add_images_option
from captune.core.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    add_images_option(parser)
    parser.add_argument("--count", type=int, metavar="N", help="draw this many more images to check")
    parser.add_argument("--out", metavar="CSV", help="table of the drawn images, to fill in")
    parser.add_argument("--from", dest="source", metavar="CSV", help="filled table of checks")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a sentence")


def run(options: argparse.Namespace) -> None:
    """Print the estimate, or draw images to check."""
    from captune.commands._screen import Screen
    from captune.core.files import write_whole
    from captune.review.answer_files import suggestions_table
    from captune.review.opening import open_session

    if (options.count is None) != (options.out is None):
        raise InputError("--count and --out belong together: captune estimate RUN --count 30 --out checks.csv")
    if options.count is not None and options.count < 1:
        raise InputError(f"--count is {options.count}, expected at least 1.")
    screen = Screen(highlight=False, soft_wrap=True)
    session = open_session(options.run, images=options.moved_images)
    if options.source:
        session.label(Path(options.source))
    if options.out:
        checks = session.suggest(options.count, checks=1.0)
        write_whole(Path(options.out), suggestions_table(checks))
        screen.print(f"{len(checks)} images to check: {options.out}", markup=False)
        screen.print(
            "Fill in the column 'answer' (a class, = for right, ? for cannot tell), then: "
            f"captune estimate {options.run} --from {options.out}",
            markup=False,
        )
        return
    found = session.estimate()
    if found:
        session.save()
    if options.json:
        sys.stdout.write(json.dumps(found.as_dict(), indent=2) + "\n")
        return
    screen.print(session.verification(), markup=False)
    if found:
        screen.print(
            f"Balanced accuracy over the {found.n_classes} classes among them: {100 * found.balanced_accuracy:.0f} % "
            f"({100 * found.balanced_low:.0f} to {100 * found.balanced_high:.0f}).",
            markup=False,
        )
