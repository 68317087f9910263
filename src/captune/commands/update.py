"""captune update: add new images to a run; answers, names and checks stay."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument(
        "images", nargs="?", metavar="IMAGES", help="folder of new images (default: new files in the folder of the run)"
    )


def run(options: argparse.Namespace) -> None:
    """Add the images, save the run, and print what is new."""
    from captune.commands._screen import Screen
    from captune.commands.label import write_report_of
    from captune.review.opening import open_session

    session = open_session(options.run, quiet=True)
    found = session.update(options.images)
    if found.n_new or found.n_gone:
        session.save()
        write_report_of(options.run)
    Screen(highlight=False, soft_wrap=True).print(str(found), markup=False)
