"""How an audit looks in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from captune.results.run import REPORT


def show(facts: Mapping[str, Any], out: Path) -> None:
    """Print what an audit found, the doubtful classes first."""
    console = Console(highlight=False, markup=False)
    truth = facts.get("truth")
    columns = ["class", "predicted", "misleads", "concentration"]
    shown = Table(
        *columns, *(["accuracy", "labels by name", "by description"] if truth else []), box=None, pad_edge=False
    )
    rows = sorted(enumerate(facts["classes"]), key=lambda pair: (-pair[1]["mismatch_frequency"], pair[1]["predicted"]))
    for class_id, row in rows:
        cells = [row["name"], str(row["predicted"]), _share(row["mismatch_frequency"]), _share(row["concentration"])]
        if truth:
            cells.append(_share(truth["zero_shot"]["per_class_accuracy"][class_id]))
            for column in ("by_name", "by_description"):
                cells.append(_share(truth["first_labels_precision"][column]["per_class"][class_id]))
        shown.add_row(*cells)
    console.print(shown)
    names = ", ".join(facts["mismatched"]) or "none"
    console.print(f"\nNames that mislead: {names}.")
    for group in facts["confused_groups"][:5]:
        console.print(f"Confused: {', '.join(group['classes'])}.")
    if truth:
        found = truth["first_labels_precision"]
        console.print(
            f"Zero-shot accuracy {truth['zero_shot']['accuracy']:.3f}; right among the first pseudo-labels: "
            f"{found['by_name']['all']:.3f} by name, {found['by_description']['all']:.3f} with descriptions."
        )
    for name, problem in facts["problems"].items():
        console.print(f"{name}: {problem}")
    console.print("\nNext:")
    for step in facts["next_steps"]:
        console.print(f"- {step}")
    console.print(f"Audit folder: {out}")
    if (out / REPORT).is_file():
        console.print(f"Report: {out / REPORT}", soft_wrap=True)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
