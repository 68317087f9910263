"""Cards in Markdown that say what a model or a data set is: data, method, precision, limits, licenses, versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from captune import __version__
from captune.core.files import is_file
from captune.results.run import Run
from captune.review.estimate import describe_accuracy

LICENSES = {
    "embedded:": "part of captune, Apache-2.0",
    "hf:openai/clip-": "MIT; its model card asks for thorough tests in the domain before any use",
    "hf:google/siglip": "Apache-2.0",
    "hf:laion/CLIP-": "MIT",
    "hf:facebook/dinov2-": "Apache-2.0",
}
"""Licenses of weights as their authors state them, by the beginning of the id."""
MOST_NAMES = 12


def model_card(run: Run, usage: str = "") -> str:
    """Return the card of a classifier; `usage` is the code that applies it."""
    environment, card = run.environment, run.card
    encoders = [str(settings) for name in ("backbone", "second_encoder") if (settings := run.settings.get(name))]
    shown = (*run.names[:MOST_NAMES], *(["..."] if run.n_classes > MOST_NAMES else []))
    sections = {
        "Data": [
            f"{card['n_images']:,} images, {card['n_skipped']:,} of which could not be read.",
            *(f"{what}: `{_cell(place)}`" for what, place in run.sources.items() if what in ("images", "labels")),
        ],
        "Method": [
            method_of(run),
            *(["Adaptation did not look helpful, so zero-shot was kept."] if run.kept == "zero_shot" else []),
        ],
        "Precision": precision_of(run),
        "Limits": list(_limits(run)),
        "Licenses": [*map(license_of, encoders), "Images and labels: those of their owners."],
        "Versions": [
            ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items()),
            f"Made {environment.get('started', '?')}, random seed {environment.get('seed', '?')}",
            f"Digests: images `{environment.get('data_fingerprint', '?')}`, weights "
            f"`{environment.get('backbone_fingerprint', '?')}`",
        ],
    }
    told = f"A classifier of images into {run.n_classes} classes ({', '.join(map(_cell, shown))}), made by captune."
    return _card(f"Model card: {_cell(run.folder.resolve().name)}", told, sections, usage)


def data_card(
    run: Run, told: str, facts: Iterable[str], counts: Mapping[str, int], certificate: str, usage: str
) -> str:
    """Return the card of a data set: what it is, further facts, and the number of images of each class."""
    table = ["| class | images |", "|---|---|", *(f"| {_cell(name)} | {n:,} |" for name, n in sorted(counts.items()))]
    precision = [f"Certificate: {certificate}"] if certificate else precision_of(run)
    sections = {"Data": list(facts), "Method": [method_of(run)], "Precision": precision, "Limits": list(_limits(run))}
    return _card("Data card", f"{told}, made by captune {__version__}.", sections, usage) + "\n".join(["", *table, ""])


def method_of(run: Run) -> str:
    """Return how the labels were made."""
    choice = run.choice
    preset = f" with the preset {choice['preset']}" if choice.get("preset") else ""
    described = f", descriptions by `{_cell(run.settings['describer'])}`" if run.settings.get("describer") else ""
    return (
        f"Method {choice.get('method', run.method)}{preset} on `{_cell(run.settings.get('backbone', '?'))}`{described}."
    )


def precision_of(run: Run) -> list[str]:
    """Return what is known about the share of right labels: the certificate, the estimate, the health check."""
    review = run.card.get("review") or {}
    checked = review.get("accuracy")
    found = [
        f"Accuracy on these images: {describe_accuracy(checked, str(run.folder))}"
        if checked
        else "Accuracy was not measured: nobody checked images drawn at random."
    ]
    if (accepted := review.get("accepted")) is not None:
        found.append(str(accepted["sentence"]))
    if run.health is not None:
        found.append(str(run.health["sentence"]))
    return found


def license_of(identifier: str) -> str:
    """Return the license of an encoder, from its own card or the list of known ones, or that it is unknown."""
    place = Path(identifier.partition(":")[2]) / "README.md"
    own = ""
    if is_file(place):
        head = place.read_text(encoding="utf-8", errors="replace").split("\n---")[0].splitlines()
        own = next((line.partition(":")[2].strip() for line in head if line.startswith("license:")), "")
    known = own or next((text for start, text in LICENSES.items() if identifier.startswith(start)), "")
    return f"`{_cell(identifier)}`: {_cell(known) or 'not known to captune; look where you got it'}."


def _limits(run: Run) -> Iterable[str]:
    yield "Precision holds for images like these; other cameras, places or times may differ."
    yield "It only knows its classes: another image gets one of them, with a confidence that is no proof."
    absent = np.flatnonzero(np.bincount(run.labels, minlength=run.n_classes) == 0)
    for what, names in (
        ("Never predicted", [run.names[c] for c in absent]),
        ("Names that mislead the text encoder", list(run.alignment.get("mismatched", ()))),
        ("Names that no image shows", run.absent_names),
    ):
        if names:
            yield f"{what}: {', '.join(_cell(name) for name in names[:MOST_NAMES])} ({len(names)})."


def _card(title: str, told: str, sections: Mapping[str, Sequence[str]], usage: str) -> str:
    lines = [f"# {title}", "", told, ""]
    for name, items in sections.items():
        lines += [f"## {name}", "", *(f"- {item}" for item in items), ""]
    if usage:
        lines += ["## Code", "", *(f"    {line}".rstrip() for line in usage.splitlines()), ""]
    return "\n".join(lines)


def _cell(text: Any) -> str:  # noqa: ANN401
    """Return text as Markdown that is only text, in one line."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
