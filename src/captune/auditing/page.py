"""The page of an audit: which names mislead, which classes collide, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from captune.auditing.card import read_audit
from captune.core.errors import RunFolderError
from captune.report.drawing import FOLDER, Drawing
from captune.report.figures import MISLEADING, NAMED, SHOWN_CLASSES, concentration_drawing
from captune.report.page import write_page
from captune.report.sections import METRICS, MOST_FILES, count, tell_misleading, word
from captune.report.thumbnails import MOST_PICTURES, Thumbnail, encode_thumbnail
from captune.results.run import REPORT

SECTIONS = (
    ("next-steps", "What to do next"),
    ("numbers", "Measured with labels"),
    ("classes", "Classes"),
    ("mismatch", "Names that mislead"),
    ("confusion", "Classes that collide"),
    ("skipped", "Files skipped"),
    ("settings", "Settings"),
)
PRECISION = (("by_name", "Right by name"), ("by_description", "Right by description"))


def write_audit_page(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of an audit with its figures; return where it is."""
    folder = Path(folder)
    target = Path(out) if out is not None else folder / REPORT
    return write_page(target, folder / FOLDER, "audit.html.j2", *describe_audit(folder), "captune.auditing")


def describe_audit(folder: Path) -> tuple[dict[str, Any], list[Drawing]]:
    """Return what the page of an audit shows, and its figures."""
    facts = read_audit(folder)
    try:
        drawing = _concentration(facts)
        content: dict[str, Any] = {
            "title": f"captune audit: {len(facts['classes'])} class names",
            "sentence": _sentence(facts),
            "next_steps": facts["next_steps"],
            "numbers": _numbers(facts.get("truth")),
            "classes": _classes(facts),
            "mismatch": {"sentence": _names(facts), "drawing": drawing, "problems": sorted(facts["problems"].items())},
            "groups": [
                {"number": i, "names": ", ".join(group["classes"]), "closeness": float(group["closeness"])}
                for i, group in enumerate(facts["confused_groups"], start=1)
            ],
            "skipped": list(facts["skipped"].items())[:MOST_FILES],
            "n_skipped": len(facts["skipped"]),
            "settings": [(key, word(value)) for key, value in facts["settings"].items()],
            "environment": [(key, word(value)) for key, value in facts["versions"].items()]
            + [("data fingerprint", facts["data_fingerprint"])],
        }
    except Exception as error:  # a file that was changed by hand can fail in any way
        raise RunFolderError(f"The audit {str(folder)!r} is damaged: {type(error).__name__}: {error}.") from error
    left_out = {name for name in ("numbers", "skipped") if not content[name.replace("-", "_")]}
    content["contents"] = [pair for pair in SECTIONS if pair[0] not in left_out]
    return content, [drawing] if drawing else []


def _sentence(facts: Mapping[str, Any]) -> str:
    aside = f" ({count(len(facts['skipped']), 'file')} skipped)" if facts["skipped"] else ""
    n_misleading, n_groups = len(facts["mismatched"]), len(facts["confused_groups"])
    text = (
        f"{count(facts['n_images'], 'image')}{aside} and {count(len(facts['classes']), 'class name')} came in; "
        f"{count(n_misleading, 'name')} {'points' if n_misleading == 1 else 'point'} at the wrong images, and "
        f"{count(n_groups, 'group')} of classes {'collides' if n_groups == 1 else 'collide'}."
    )
    truth = facts.get("truth")
    return f"{text} Zero-shot accuracy is {truth['zero_shot']['accuracy']:.1%}." if truth else text


def _names(facts: Mapping[str, Any]) -> str:
    described = sum(1 for row in facts["classes"] if row["is_mismatched"] and row["description"])
    return tell_misleading(facts["mismatched"], len(facts["classes"]), described)


def _numbers(truth: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if truth is None:
        return None
    found = truth["zero_shot"]
    rows = []
    for key, name, style, _ in METRICS:
        value = len(found["never_predicted"]) if key == "never" else found[key]
        rows.append({"name": name, "values": [style.format(value)]})
    for key, name in PRECISION:
        rows.append({"name": f"First pseudo-labels: {name.lower()}", "values": [_share(truth, key)]})
    return {"rows": rows, "caption": f"Zero-shot prediction of {count(found['n_images'], 'labeled image')}"}


def _share(truth: Mapping[str, Any], column: str) -> str:
    return f"{truth['first_labels_precision'][column]['all']:.1%}"


def _classes(facts: Mapping[str, Any]) -> dict[str, Any]:
    truth = facts.get("truth")
    root, each = Path(facts.get("image_root", ".")), MOST_PICTURES // max(1, len(facts["classes"]))
    rows = []
    for c, row in enumerate(facts["classes"]):
        right = [truth["first_labels_precision"][key]["per_class"][c] for key, _ in PRECISION] if truth else []
        numbers = [row["mismatch_frequency"], row["concentration"]]
        numbers += [truth["zero_shot"]["per_class_accuracy"][c], *right] if truth else []
        pictures = [
            Thumbnail(data, example["path"], float(example["confidence"]))
            for example in row.get("examples", ())[:each]
            if (data := encode_thumbnail(root / example["path"])) is not None
        ]
        rows.append(
            {
                "name": row["name"],
                "predicted": int(row["predicted"]),
                "shares": [None if value is None else float(value) for value in numbers],
                "description": tuple(row["description"]),
                "pictures": pictures,
            }
        )
    has = {"description": any(row["description"] for row in rows), "pictures": any(row["pictures"] for row in rows)}
    columns = [("Class", "text"), ("Predicted", "number"), ("Misleading", "number"), ("In one cluster", "number")]
    columns += [("Accuracy", "number"), *((name, "number") for _, name in PRECISION)] if truth else []
    columns += [("Described as", "text")] if has["description"] else []
    columns += [("Most confident by name", "pictures")] if has["pictures"] else []
    return {"rows": rows, "columns": columns, **{f"has_{name}": value for name, value in has.items()}}


def _concentration(facts: Mapping[str, Any]) -> Drawing | None:
    chosen = sorted((row for row in facts["classes"] if row["is_mismatched"]), key=lambda r: -r["mismatch_frequency"])
    chosen = chosen[:SHOWN_CLASSES]
    if not chosen:
        return None
    return concentration_drawing(
        [row["name"] for row in chosen],
        np.asarray([row["mismatch_frequency"] for row in chosen], dtype=np.float64),
        np.asarray([row["concentration"] for row in chosen], dtype=np.float64),
        NAMED,
        MISLEADING,
    )
