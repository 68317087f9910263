"""An audit read back from audit.json, and shown as a page and in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from captune.core.cards import read_card
from captune.core.errors import RunFolderError
from captune.core.files import is_file
from captune.core.replacing import finish_replacing
from captune.report.class_table import Column, capped
from captune.report.drawing import Drawing
from captune.report.figures import FREQUENCY, MISLEADING, SHOWN_CLASSES, concentration_drawing
from captune.report.page import write_page
from captune.report.pictures import Picture, encode_picture
from captune.report.sections import (
    METRICS,
    as_text,
    contents,
    group_columns,
    misleading_sentence,
    skipped_section,
)
from captune.report.summary import count
from captune.results.run_folder import REPORT

if TYPE_CHECKING:
    from rich.console import Console

FORMAT, VERSION = "captune-audit", 1
CARD = "audit.json"
MOST_PICTURES = 400
PRECISION = (("by_name", "Right by name"), ("by_description", "Right by description"))


def holds_audit(folder: str | Path) -> bool:
    """Return whether a folder contains an audit."""
    finish_replacing(Path(folder), CARD)
    return is_file(Path(folder) / CARD)


def read_audit(folder: str | Path) -> dict[str, Any]:
    """Return the content of audit.json, or raise an error if the folder does not contain an audit."""
    missing = f"{str(folder)!r} does not contain an audit: {CARD} is missing. Make one with captune audit."
    finish_replacing(Path(folder), CARD)
    return read_card(Path(folder) / CARD, FORMAT, VERSION, missing)


def write_audit_page(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of an audit with its figures, and return its path."""
    folder = Path(folder)
    target = Path(out) if out is not None else folder / REPORT
    return write_page(target, "audit.html.j2", _describe_audit(folder)[0], "captune.auditing")


def _describe_audit(folder: Path) -> tuple[dict[str, Any], list[Drawing]]:
    facts = read_audit(folder)
    try:
        names, groups = [row["name"] for row in facts["classes"]], facts["confused_groups"]
        columns, left_out = capped(_class_columns(facts), [row["predicted"] for row in facts["classes"]])
        drawings = _concentration(facts)
        n_described = sum(1 for row in facts["classes"] if row["is_mismatched"] and row["description"])
        content: dict[str, Any] = {
            "title": f"captune audit: {len(names)} class names",
            "sentence": _summary(facts),
            "next_steps": facts["next_steps"],
            "numbers": _numbers(facts.get("truth")),
            "classes": columns,
            "left_out": left_out,
            "mismatch": {
                "sentence": misleading_sentence(facts["mismatched"], len(names), n_described),
                "drawings": drawings,
                "problems": sorted(facts["problems"].items()),
            },
            "confusion": {
                "columns": group_columns([g["classes"] for g in groups], [float(g["closeness"]) for g in groups]),
                "drawings": [],
                "note": "",
            },
            "skipped": skipped_section(list(facts["skipped"].items()), CARD),
            "settings": [(key, as_text(value)) for key, value in facts["settings"].items()],
            "environment": [
                *((key, as_text(value)) for key, value in facts["versions"].items()),
                ("data fingerprint", facts["data_fingerprint"]),
            ],
        }
    except Exception as error:  # files that were edited by hand can fail in any way
        raise RunFolderError(f"The audit {str(folder)!r} is damaged: {type(error).__name__}: {error}.") from error
    content["contents"] = contents(content, numbers="Measured with labels")
    return content, drawings


def _summary(facts: Mapping[str, Any]) -> str:
    skipped = f" ({count(len(facts['skipped']), 'file')} skipped)" if facts["skipped"] else ""
    text = (
        f"In {count(facts['n_images'], 'image')}{skipped} of {count(len(facts['classes']), 'class')}, the audit found "
        f"{count(len(facts['mismatched']), 'misleading class name')} and "
        f"{count(len(facts['confused_groups']), 'group')} of confused classes."
    )
    truth = facts.get("truth")
    return f"{text} Zero-shot accuracy is {truth['zero_shot']['accuracy']:.1%}." if truth else text


def _numbers(truth: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if truth is None:
        return None
    found = {**truth["zero_shot"], "never": len(truth["zero_shot"]["never_predicted"])}
    rows = [{"name": name, "values": [style.format(found[key])]} for key, name, style, _ in METRICS]
    for key, name in PRECISION:
        share = truth["first_labels_precision"][key]["all"]
        rows.append({"name": f"First pseudo-labels: {name.lower()}", "values": [f"{share:.1%}"]})
    return {"rows": rows, "caption": f"Zero-shot predictions for {count(found['n_images'], 'labeled image')}"}


def _class_columns(facts: Mapping[str, Any]) -> list[Column]:
    rows, truth = facts["classes"], facts.get("truth")
    shares = {
        "Misleading": [row["mismatch_frequency"] for row in rows],
        "In one cluster": [row["concentration"] for row in rows],
    }
    if truth:
        shares["Accuracy"] = truth["zero_shot"]["per_class_accuracy"]
        shares |= {name: truth["first_labels_precision"][key]["per_class"] for key, name in PRECISION}
    columns = [
        Column("Class", [row["name"] for row in rows], "name"),
        Column("Predicted", [int(row["predicted"]) for row in rows]),
    ]
    for name, values in shares.items():
        columns.append(Column(name, [None if v is None else float(v) for v in values], style="{:.0%}"))
    if any(row["description"] for row in rows):
        columns.append(Column("Described as", [tuple(row["description"]) for row in rows], "sentences"))
    root, each = Path(facts.get("image_root", ".")), MOST_PICTURES // max(1, len(rows))
    pictures = [
        [
            Picture(data, example["path"], f"confidence {example['confidence']:.2f}")
            for example in row.get("examples", ())[:each]
            if (data := encode_picture(root / example["path"])) is not None
        ]
        for row in rows
    ]
    return [*columns, Column("Most confident by name", pictures, "pictures")] if any(pictures) else columns


def _concentration(facts: Mapping[str, Any]) -> list[Drawing]:
    chosen = sorted((row for row in facts["classes"] if row["is_mismatched"]), key=lambda r: -r["mismatch_frequency"])
    chosen = chosen[:SHOWN_CLASSES]
    if not chosen:
        return []
    frequency, share = (np.asarray([row[key] for row in chosen]) for key in ("mismatch_frequency", "concentration"))
    return [concentration_drawing([row["name"] for row in chosen], frequency, share, FREQUENCY, MISLEADING)]


def print_audit(facts: Mapping[str, Any], out: Path, console: Console) -> None:
    """Print the findings of an audit, with misleading class names first."""
    from rich.table import Table

    truth = facts.get("truth")
    columns = ["class", "predicted", "misleading", "in one cluster"]
    columns += ["accuracy", "right by name", "right by description"] if truth else []
    shown = Table(*columns, box=None, pad_edge=False)
    rows = sorted(enumerate(facts["classes"]), key=lambda pair: (-pair[1]["mismatch_frequency"], pair[1]["predicted"]))
    for class_id, row in rows:
        shares = [row["mismatch_frequency"], row["concentration"]]
        if truth:
            shares.append(truth["zero_shot"]["per_class_accuracy"][class_id])
            shares += [truth["first_labels_precision"][key]["per_class"][class_id] for key, _ in PRECISION]
        shown.add_row(row["name"], str(row["predicted"]), *("-" if s is None else f"{s:.2f}" for s in shares))
    console.print(shown)
    console.print(f"\nMisleading class names: {', '.join(facts['mismatched']) or 'none'}.")
    for group in facts["confused_groups"][:5]:
        console.print(f"Confused classes: {', '.join(group['classes'])}.")
    if truth:
        found = truth["first_labels_precision"]
        console.print(
            f"Zero-shot accuracy {truth['zero_shot']['accuracy']:.3f}; accuracy of the first pseudo-labels "
            f"{found['by_name']['all']:.3f} by name, {found['by_description']['all']:.3f} with descriptions."
        )
    for name, problem in facts["problems"].items():
        console.print(f"{name}: {problem}")
    console.print("\nNext steps:")
    for step in facts["next_steps"]:
        console.print(f"- {step}")
    console.print(f"Audit folder: {out}")
    if (out / REPORT).is_file():
        console.print(f"Report: {out / REPORT}", soft_wrap=True)
