"""Audit folders with made-up findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from report_runs import write_pictures

BAD = "<script>alert('x')</script>"


def audit_facts(images: Path, has_truth: bool = True) -> dict[str, Any]:
    """Return the findings of an audit of three classes, with markup in all texts."""
    pictures = write_pictures(images, [0, 0, 1, 1], skipped=0)
    names = [BAD, "plain & simple", "never"]
    rows = [
        {
            "name": name,
            "predicted": 2 if c < 2 else 0,
            "is_mismatched": c == 0,
            "mismatch_frequency": 0.9 if c == 0 else 0.0,
            "concentration": 0.75,
            "description": ["<b>stripes</b>", "more"] if c == 0 else [],
            "examples": [{"path": pictures.name(2 * c), "confidence": 0.5}] if c < 2 else [],
        }
        for c, name in enumerate(names)
    ]
    facts: dict[str, Any] = {
        "format": "captune-audit",
        "version": 1,
        "settings": {"backbone": "toy:<u>", "seed": 0},
        "versions": {"captune": "0"},
        "data_fingerprint": "f",
        "n_images": 5,
        "skipped": {"<img src=x>.png": "damaged <image>"},
        "image_root": str(images),
        "classes": rows,
        "mismatched": [BAD],
        "confused_groups": [{"classes": names[:2], "closeness": 2.5}],
        "problems": {"never": "the answer was <empty>"},
        "next_steps": ["Describe <script>."],
    }
    if has_truth:
        metrics = {"accuracy": 0.5, "balanced_accuracy": 0.4, "lowest_five": 0.3, "never_predicted": [2]}
        metrics |= {"predicted_imbalance": 1.5, "ece": 0.1, "n_images": 4, "per_class_accuracy": [0.25, 0.75, None]}
        columns = {key: {"all": 0.6, "per_class": [0.1, 0.9, None]} for key in ("by_name", "by_description")}
        facts["truth"] = {"zero_shot": metrics, "first_labels_precision": columns}
    return facts


def write_audit(folder: Path, facts: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder
