"""captune audit: find misleading class names and confused classes, without training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from captune.commands._project import read_project
from captune.commands._shared import IMAGES_HELP, LABELS_HELP, add_run_options

if TYPE_CHECKING:
    from rich.console import Console

    from captune.report.measures import Measures

MOST_GROUPS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("images", metavar="IMAGES", nargs="?", help=IMAGES_HELP)
    parser.add_argument("--labels", metavar="folders|CSV", help=f"labels to measure the audit: {LABELS_HELP}")
    add_run_options(parser, "audit folder (default: captune-audit)")


def run(options: argparse.Namespace) -> None:
    """Audit, save and print the result."""
    from captune.commands._screen import Screen
    from captune.pipeline import audit
    from captune.report.measures import Measures
    from captune.results.run import Run

    inputs, settings = read_project(options)
    out = Path(inputs.pop("out") or "captune-audit")
    audit(**inputs, out=out, overwrite=options.overwrite, quiet=options.quiet, **settings)
    print_audit(Measures(Run.read(out, inputs["labels"])), Screen(highlight=False, markup=False))


def print_audit(measures: Measures, console: Console) -> None:
    """Print the findings of an audit, with misleading class names first."""
    import numpy as np
    from rich.table import Table

    from captune.report.class_table import class_columns
    from captune.report.summary import next_steps
    from captune.results.run_folder import REPORT

    found, out = measures.run, measures.run.folder
    columns = [column for column in class_columns(measures) if column.kind in ("name", "number")]
    shown = Table(*(column.title.lower() for column in columns), box=None, pad_edge=False)
    for c in np.lexsort((measures.counts(after=True), -np.nan_to_num(measures.frequency))):
        shown.add_row(*(column.text(c) for column in columns))
    console.print(shown)
    console.print(f"\nMisleading class names: {', '.join(found.names[c] for c in measures.mismatched) or 'none'}.")
    for group in measures.groups[:MOST_GROUPS]:
        console.print(f"Confused classes: {', '.join(found.names[c] for c in group.classes)}.")
    for title, share in measures.first_labels_precision().items():
        console.print(f"First pseudo-labels right {title}: {share:.1%}.")
    if measures.has_truth:
        console.print(f"Zero-shot accuracy {measures.metrics[1].accuracy:.1%}.")
    console.print("\nNext steps:")
    for step in next_steps(measures):
        console.print(f"- {step['why']}")
        console.print(f"    {step['command']}", soft_wrap=True)
    console.print(f"Audit folder: {out}")
    if (out / REPORT).is_file():
        console.print(f"Report: {out / REPORT}", soft_wrap=True)
