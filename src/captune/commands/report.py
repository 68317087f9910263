"""captune report: write the report of a run or audit, or compare runs."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run or audit folder; several runs are compared")
    parser.add_argument("--labels", metavar="folders|CSV", help="true labels: 'folders' or a table (path, label)")
    parser.add_argument("--out", metavar="HTML", help="output file (default: RUN/report.html)")
    parser.add_argument("--images", metavar="FOLDER", help="folder of the images, if it moved or the run is not yours")
    parser.add_argument("--figures", metavar="FOLDER", help="also write the figures as PNG, SVG and CSV files")


def run(options: argparse.Namespace) -> None:
    """Write the report and print its path."""
    from captune.commands._screen import Screen
    from captune.report.page import write_report

    page = write_report(options.runs, options.out, options.labels, options.figures, options.images)
    Screen(highlight=False, soft_wrap=True).print(f"Report: {page}", markup=False)
