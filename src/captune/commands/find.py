"""captune find: list images by words, by an example, or by what is known about them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from captune.commands._shared import add_images_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "The table can be filled in and imported like that of captune suggest: captune label RUN --from CSV"
    parser.add_argument("run", metavar="RUN", help="run folder")
    add_images_option(parser)
    parser.add_argument("text", nargs="?", default="", metavar="WORDS", help="what the images show")
    parser.add_argument("--like", metavar="IMAGE", help="image that they resemble, instead of words")
    parser.add_argument("--class", dest="label", metavar="NAME", help="class that they are predicted as")
    parser.add_argument("--above", type=float, default=0.0, metavar="P", help="lowest confidence (default: 0)")
    parser.add_argument("--below", type=float, default=1.0, metavar="P", help="highest confidence (default: 1)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FILTER",
        help="changed (by answers that are not saved yet), unlabeled, outliers, duplicates, 'none of these' or "
        "disagreed; repeat for several",
    )
    parser.add_argument("--count", type=int, default=20, metavar="N", help="number of images (default: 20)")
    parser.add_argument("--out", metavar="CSV", help="table to write (default: standard output)")


def run(options: argparse.Namespace) -> None:
    """Write the images that were found."""
    from captune.core.errors import InputError
    from captune.core.files import table, write_whole
    from captune.core.text import printable
    from captune.review.opening import open_session

    if options.count < 1:
        raise InputError(f"--count is {options.count}, expected at least 1.")
    session = open_session(options.run, images=options.moved_images, quiet=True)
    found = session.find(
        options.text,
        like=options.like,
        label=options.label,
        confidence=(options.above, options.below),
        only=options.only,
        count=options.count,
    )
    rows = ((f.image, f.label, f"{f.confidence:.3f}", f"{f.similarity:.3f}", "") for f in found)
    lines = table(("path", "label", "confidence", "similarity", "answer"), rows)
    if options.out is None:
        is_screen = sys.stdout.isatty()
        sys.stdout.writelines(printable(text) if is_screen else text for text in lines)
    else:
        write_whole(Path(options.out), lines)
