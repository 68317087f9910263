"""captune report: the page of a run or an audit, or a comparison of runs."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:  # noqa: ANN401 (argparse keeps this class private)
    """Declare the command."""
    words = commands.add_parser("report", help="write the page of a run or audit, or compare runs", allow_abbrev=False)
    words.add_argument(
        "runs", nargs="+", metavar="RUN", help="run or audit folder; several runs are compared side by side"
    )
    words.add_argument("--labels", metavar="folders|CSV", help="folder names, or a table (path, label), to measure by")
    words.add_argument("--out", metavar="HTML", help="page to write (default: RUN/report.html)")


def run(options: argparse.Namespace) -> None:
    """Write the page and say where it is."""
    from captune.auditing.card import holds_audit
    from captune.auditing.page import write_audit_page
    from captune.commands._screen import Screen
    from captune.core.errors import InputError
    from captune.report.page import write_report

    if len(options.runs) == 1 and holds_audit(options.runs[0]):
        if options.labels is not None:
            raise InputError("An audit is measured when it is made: captune audit IMAGES --labels ... again.")
        page = write_audit_page(options.runs[0], options.out)
    else:
        page = write_report(options.runs, options.out, options.labels)
    Screen(highlight=False, soft_wrap=True).print(f"Report: {page}", markup=False)
