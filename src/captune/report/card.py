"""Cards in Markdown that say what a model or a data set is: data, method, precision, limits, licenses, versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.files import is_file
from captune.report.page import one_line, render
from captune.results.run import Run

LICENSES = {
    "embedded:": "part of captune, Apache-2.0",
    "hf:openai/clip-": "MIT; its model card asks for thorough tests in the domain before any use",
    "hf:google/siglip": "Apache-2.0",
    "hf:laion/CLIP-": "MIT",
    "hf:facebook/dinov2-": "Apache-2.0",
}
"""Licenses of weights as their authors state them, by the beginning of the id."""


def model_card(run: Run, usage: str = "") -> str:
    """Return the card of a classifier; `usage` is the code that applies it."""
    facts = [
        f"{run.card['n_images']:,} images, {run.card['n_skipped']:,} of which could not be read.",
        *(f"{what}: `{one_line(place)}`" for what, place in run.sources.items() if what in ("images", "labels")),
    ]
    encoders = [str(settings) for name in ("backbone", "second_encoder") if (settings := run.settings.get(name))]
    return _card(run, facts=facts, usage=usage, licenses=[license_of(encoder) for encoder in encoders])


def data_card(
    run: Run, told: str, facts: Iterable[str], counts: Mapping[str, int], certificate: str, usage: str
) -> str:
    """Return the card of a data set: what it is, further facts, and the number of images of each class."""
    return _card(run, facts=facts, usage=usage, told=told, counts=sorted(counts.items()), certificate=certificate)


def _card(run: Run, **content: Any) -> str:  # noqa: ANN401
    absent = np.flatnonzero(np.bincount(run.labels, minlength=run.n_classes) == 0)
    limits = {
        "Never predicted": [run.names[c] for c in absent],
        "Names that mislead the text encoder": run.alignment.get("mismatched", ()),
        "Names that no image shows": run.absent_names,
    }
    return render("card.md.j2", {"counts": (), "certificate": "", **content, "run": run, "limits": limits})


def license_of(identifier: str) -> str:
    """Return the license of an encoder, from its own card or the list of known ones, or that it is unknown."""
    place = Path(identifier.partition(":")[2]) / "README.md"
    own = ""
    if is_file(place):
        head = place.read_text(encoding="utf-8", errors="replace").split("\n---")[0].splitlines()
        own = next((line.partition(":")[2].strip() for line in head if line.startswith("license:")), "")
    known = own or next((text for start, text in LICENSES.items() if identifier.startswith(start)), "")
    return f"`{one_line(identifier)}`: {one_line(known) or 'not known to captune; look where you got it'}."
