"""What changed in a run since its last report, of which a few numbers are kept beside it."""

from __future__ import annotations

from typing import Any

from captune.core.cards import read_json
from captune.core.files import refuse_links, write_json
from captune.report.measures import Measures
from captune.results.run import Run

FILE = "last_report.json"
MOST_CLASSES = 2000
MOST_LISTED = 5


def read_states(run: Run) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the present state of a run, and the one to compare it with: the last one that was different."""
    now = _state_of(Measures(run))
    try:
        kept = read_json(run.folder / FILE)
        last, earlier = dict(kept["now"]), kept["before"] and dict(kept["before"])
    except (OSError, ValueError, TypeError, KeyError):
        return now, None
    return now, earlier if last == now else last


def keep_state(run: Run, now: dict[str, Any], before: dict[str, Any] | None) -> None:
    """Write the state that the next report is compared with."""
    refuse_links(run.folder, (FILE,))
    write_json(run.folder / FILE, {"now": now, "before": before})


def describe_changes(now: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    """Return what changed, as lines; nothing for a first report or a file that was edited."""
    if before is None:
        return []
    try:
        return [line for line in _lines(now, before) if line]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _state_of(measures: Measures) -> dict[str, Any]:
    run = measures.run
    review = run.card.get("review") or {}
    accuracy = review.get("accuracy") or {}
    counts = measures.counts(after=True).tolist()
    return {
        "images": len(run.labels),
        "skipped": len(run.skipped_files),
        "method": run.method,
        "kept": run.kept,
        "answers": int(review.get("n_labels") or 0),
        "accuracy": accuracy.get("accuracy"),
        "classes": dict(zip(run.names, counts, strict=True)) if run.n_classes <= MOST_CLASSES else {},
    }


def _lines(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    titles = {"images": "Images", "skipped": "Skipped files", "answers": "Answers of people"}
    lines = [f"{title}: {before[k]:,} → {now[k]:,}" for k, title in titles.items() if now[k] != before[k]]
    for key, title in (("method", "Method"), ("kept", "Result that was kept")):
        if now[key] != before[key]:
            lines.append(f"{title}: {before[key]} → {now[key]}")
    if now["accuracy"] != before["accuracy"]:
        old, new = ("not measured" if one["accuracy"] is None else f"{one['accuracy']:.1%}" for one in (before, now))
        lines.append(f"Accuracy by random checks: {old} → {new}")
    old_counts, new_counts = before["classes"], now["classes"]
    for title, names in (("New classes", new_counts.keys() - old_counts), ("Gone", old_counts.keys() - new_counts)):
        if names:
            lines.append(f"{title}: {', '.join(sorted(names)[:MOST_LISTED])}{' …' if len(names) > MOST_LISTED else ''}")
    moved = {name: (old_counts[name], n) for name, n in new_counts.items() if old_counts.get(name, n) != n}
    largest = sorted(moved, key=lambda name: -abs(moved[name][1] - moved[name][0]))[:MOST_LISTED]
    return lines + [f"{name}: {moved[name][0]:,} → {moved[name][1]:,} images" for name in largest]
