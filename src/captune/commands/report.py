"""captune report: write the report of a run or audit, or compare runs."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run or audit folder; several runs are compared")
    parser.add_argument("--labels", metavar="folders|CSV", help="true labels: 'folders' or a table (path, label)")
    parser.add_argument("--out", metavar="HTML", help="output file (default: RUN/report.html)")
    parser.add_argument("--figures", metavar="FOLDER", help="also write the figures as PNG, SVG and CSV files")


def run(options: argparse.Namespace) -> None:
    """Write the report and print its path."""
    from captune.auditing.page import holds_audit, write_audit_page
    from captune.commands._screen import Screen
    from captune.core.errors import InputError
    from captune.report.page import write_report

    if len(options.runs) == 1 and holds_audit(options.runs[0]):
        if options.labels is not None:
            raise InputError(
                "--labels does not apply to a finished audit: run captune audit IMAGES --labels ... again."
            )
        page = write_audit_page(options.runs[0], options.out)
    else:
        page = write_report(options.runs, options.out, options.labels, options.figures)
    Screen(highlight=False, soft_wrap=True).print(f"Report: {page}", markup=False)
