"""captune demo: the whole story on embedded images, offline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:  # noqa: ANN401 (argparse keeps this class private)
    """Declare the command."""
    words = commands.add_parser("demo", help="show the whole story on embedded images, offline", allow_abbrev=False)
    words.add_argument("--out", default="captune-demo", metavar="FOLDER", help="folder to write (captune-demo)")
    words.add_argument("--seed", type=int, default=0, help="seed of the images and of everything else random")


def run(options: argparse.Namespace) -> None:
    """Run the demo and show before and after."""
    from rich.table import Table

    from captune.commands._screen import Screen
    from captune.demo import run_demo as run_story

    found = run_story(Path(options.out), options.seed)
    shown = Table(f"on {found.after.n_images} new images", "zero-shot", "CAP", box=None, pad_edge=False)
    for label, before, after in (
        ("accuracy", f"{found.before.accuracy:.1%}", f"{found.after.accuracy:.1%}"),
        ("balanced accuracy", f"{found.before.balanced_accuracy:.1%}", f"{found.after.balanced_accuracy:.1%}"),
        ("mean of the lowest five classes", f"{found.before.lowest_five:.1%}", f"{found.after.lowest_five:.1%}"),
        ("classes never predicted", str(len(found.before.never_predicted)), str(len(found.after.never_predicted))),
    ):
        shown.add_row(label, before, after)
    console = Screen(highlight=False, markup=False)
    console.print(shown)
    console.print(f"Done in {found.seconds:.0f} s. Report: {found.run_folder / 'report.html'}", soft_wrap=True)
