"""What a run of the harness counted, and the tables that it prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

FAULTS: dict[str, Counter[str]] = {}
"""By fault: tried, resumed to the same result, repaired or told in a clear message, lost."""
MUTANTS: dict[str, Counter[str]] = {}
"""By kind of file: tried, accepted, refused with a message, and every way to fail."""
FACTS: list[str] = []
"""Remarks below the tables."""

OUTCOMES = ("tried", "same result", "repaired", "clear message", "lost")
ANSWERS = ("tried", "accepted", "refused", "crash", "hang", "memory", "escape")


def record(fault: str, outcome: str) -> None:
    """Count one fault."""
    FAULTS.setdefault(fault, Counter()).update(["tried", outcome])


def as_plain() -> dict[str, Any]:
    """Return everything that was counted, as JSON could hold it."""
    return {"faults": {k: dict(v) for k, v in FAULTS.items()}, "mutants": {k: dict(v) for k, v in MUTANTS.items()}}


def add(plain: dict[str, Any]) -> None:
    """Add what another process counted."""
    for target, name in ((FAULTS, "faults"), (MUTANTS, "mutants")):
        for kind, counts in plain.get(name, {}).items():
            target.setdefault(kind, Counter()).update(counts)


def tables() -> list[str]:
    """Return the tables as lines of Markdown."""
    lines: list[str] = []
    if FAULTS:
        lines += _table("fault", OUTCOMES, FAULTS)
    if MUTANTS:
        lines += ["", *_table("mutated", ANSWERS, MUTANTS)]
    return [*lines, "", *FACTS]


def _table(title: str, columns: Sequence[str], rows: dict[str, Counter[str]]) -> list[str]:
    total: Counter[str] = Counter()
    for counts in rows.values():
        total.update(counts)
    lines = [f"| {title} | {' | '.join(columns)} |", "|---" + "|---:" * len(columns) + "|"]
    for name, counts in (*rows.items(), ("all", total)):
        lines.append(f"| {name} | {' | '.join(str(counts[column]) for column in columns)} |")
    return lines
