"""captune suggest: list the images, or groups of images, that a person should look at first."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from captune.commands._shared import add_images_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "Fill in the column 'answer' (a class, = if the label is right, ? if you cannot tell), then: "
        "captune label RUN --from CSV"
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    add_images_option(parser)
    parser.add_argument("--count", type=int, metavar="N", help="number of images (default: 20)")
    parser.add_argument(
        "--for-precision", type=float, metavar="P", help="the images to check before labels are accepted at a precision"
    )
    parser.add_argument(
        "--checks",
        type=float,
        metavar="SHARE",
        help="share of images drawn at random, to estimate accuracy (default: 0.2)",
    )
    parser.add_argument("--groups", action="store_true", help="list groups of images instead, to be named as a whole")
    parser.add_argument("--out", metavar="CSV", help="table to fill in (default: standard output)")


def run(options: argparse.Namespace) -> None:
    """Write the suggestions."""
    from captune.commands._screen import Screen
    from captune.core.errors import InputError
    from captune.core.files import write_whole
    from captune.core.text import printable
    from captune.review.answer_files import groups_table, suggestions_table
    from captune.review.opening import open_session
    from captune.review.suggestions import CHECK_SHARE, STOP_BELOW, expected_change

    share = CHECK_SHARE if options.checks is None else options.checks
    count = 20 if options.count is None else options.count
    if count < 1 or not 0 <= share <= 1:
        raise InputError(f"Expected --count of at least 1 and --checks from 0 to 1, got {count} and {share}.")
    session = open_session(options.run, images=options.moved_images)
    if options.groups:
        groups = sorted(session.groups(), key=lambda group: -len(group) * (1.0 - group.confidence))[:count]
        found: int = len(groups)
        lines = groups_table(groups, session.images)
    else:
        suggestions = session.suggest(count, checks=share) if options.for_precision is None else []
        if options.for_precision is not None:
            suggestions = session.suggest_checks(options.for_precision)[: options.count]
        found = len(suggestions)
        lines = suggestions_table(suggestions)
    if options.out is None:
        is_screen = sys.stdout.isatty()
        sys.stdout.writelines(printable(text) if is_screen else text for text in lines)
        return
    write_whole(Path(options.out), lines)
    screen = Screen(highlight=False, soft_wrap=True)
    what = "groups" if options.groups else "images"
    screen.print(f"{found} {what} to look at: {options.out}", markup=False)
    if not options.groups and options.for_precision is None:
        share = expected_change(session, suggestions)
        stop = ": you may stop" if share < STOP_BELOW else ""
        screen.print(f"These answers change about {100 * share:.1f} % of the other labels{stop}.", markup=False)
    screen.print(f"Fill in the column 'answer', then: captune label {options.run} --from {options.out}", markup=False)
