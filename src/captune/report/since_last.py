"""What changed in a run since its last report, of which a few numbers are kept beside it."""

from __future__ import annotations

from typing import Any

from captune.core.cards import read_json
from captune.core.files import write_json
from captune.report.measures import Measures
from captune.results.run import Run

FILE = "last_report.json"
MOST_CLASSES = 2000
MOST_LISTED = 5


def read_states(run: Run) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the present state of a run, and the one to compare it with: the last one that was different."""
    review = run.card.get("review") or {}
    accuracy = (review.get("accuracy") or {}).get("accuracy")
    counts = Measures(run).counts(after=True).tolist()
    facts = {
        "Images": f"{len(run.labels):,}",
        "Skipped files": f"{len(run.skipped_files):,}",
        "Method": run.method,
        "Result that was kept": run.kept,
        "Answers of people": f"{review.get('n_labels') or 0:,}",
        "Accuracy by random checks": "not measured" if accuracy is None else f"{accuracy:.1%}",
    }
    now = {"facts": facts, "classes": dict(zip(run.names, counts, strict=True)) if len(counts) <= MOST_CLASSES else {}}
    try:
        kept = read_json(run.folder / FILE)
        return now, kept["before"] if kept["now"] == now else kept["now"]
    except (OSError, ValueError, TypeError, KeyError):
        return now, None


def keep_state(run: Run, now: dict[str, Any], before: dict[str, Any] | None) -> None:
    """Write the state that the next report is compared with."""
    write_json(run.folder / FILE, {"now": now, "before": before})


def describe_changes(now: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    """Return what changed, as lines; nothing for a first report or a file that was edited."""
    try:
        return [] if before is None else _lines(now, before)
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _lines(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    lines = [f"{k}: {before['facts'][k]} → {new}" for k, new in now["facts"].items() if new != before["facts"][k]]
    old, new = before["classes"], now["classes"]
    moved = {name: (old.get(name, 0), new.get(name, 0)) for name in {**new, **old} if old.get(name) != new.get(name)}
    largest = sorted(moved, key=lambda name: -abs(moved[name][1] - moved[name][0]))[:MOST_LISTED]
    return lines + [f"{name}: {moved[name][0]:,} → {moved[name][1]:,} images" for name in largest]
