"""A run is a folder: settings, versions, seed, data fingerprint, predictions, skipped files, classifier."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save as save_arrays

from captune.core.errors import RunFolderError
from captune.core.files import table, write_json, write_whole
from captune.data.images import ImageCollection
from captune.embeddings.predictions import Predictions
from captune.results.classifier import Classifier
from captune.results.evidence import FILE, HISTORY, PSEUDO_LABELS, Evidence

FORMAT, VERSION = "captune-run", 1
CARD = "run.json"
CLASSIFIER = "classifier"
CHECKPOINTS = "checkpoints"
REPORT = "report.html"
EXPORTS = "exports"


@dataclass(frozen=True)
class AdaptationRun:
    """What a run found and made.

    Attributes:
        settings: Everything that was set, flat, as a settings file would say it.
        images: The images that were adapted to.
        predictions: Class probabilities of the readable ones.
        skipped: Why the other images were left out, by position.
        classifier: The adapted classifier.
        environment: Versions, seed, data fingerprint, times.
        rounds: What the method recorded on its way.
        evidence: What a report needs, and the check without labels.
        kept: Whether the classifier is the `adapted` one, or `zero_shot` because adaptation looked harmful.
        sources: Where images, classes and labels came from, as they were given.
    """

    settings: Mapping[str, Any]
    images: ImageCollection
    predictions: Predictions
    skipped: Mapping[int, str]
    classifier: Classifier
    environment: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]] = field(default_factory=list)
    evidence: Evidence | None = None
    kept: str = "adapted"
    sources: Mapping[str, str] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Write the run folder; run.json comes last, so a folder with it is complete."""
        target = Path(folder)
        (target / CARD).unlink(missing_ok=True)  # a run that is being replaced is no run until it is complete
        for name in (FILE, PSEUDO_LABELS, HISTORY, REPORT):
            (target / name).unlink(missing_ok=True)
        shutil.rmtree(target / EXPORTS, ignore_errors=True)  # they are of the run that is being replaced
        self.classifier.save(target / CLASSIFIER)
        write_whole(target / "predictions.csv", table(("path", "label", "confidence"), self._predicted_rows()))
        rows = ((self.images.name(position), reason) for position, reason in sorted(self.skipped.items()))
        write_whole(target / "skipped.csv", table(("path", "reason"), rows))
        write_whole(target / "settings.yaml", yaml.safe_dump(dict(self.settings), sort_keys=False, allow_unicode=True))
        if self.evidence is not None:
            arrays = {name: np.ascontiguousarray(array) for name, array in self.evidence.arrays.items()}
            write_whole(target / FILE, save_arrays(arrays))
            for name, (header, rows_of_table) in self.evidence.tables(self.classifier.names).items():
                write_whole(target / name, table(header, rows_of_table))
        health = self.evidence.health if self.evidence is not None else None
        card = {
            "format": FORMAT,
            "version": VERSION,
            "settings": dict(self.settings),
            "classes": list(self.classifier.names),
            "n_images": len(self.images),
            "n_skipped": len(self.skipped),
            "environment": dict(self.environment),
            "sources": {what: readable(source) for what, source in self.sources.items()},
            "image_root": readable(str(self.images.root.absolute())),
            "kept": self.kept,
            "health": health.as_dict() if health is not None else None,
            "rounds": [dict(facts) for facts in self.rounds],
        }
        write_json(target / CARD, card)
        return target

    def _predicted_rows(self) -> Iterator[Sequence[object]]:
        names, index = self.classifier.names, self.predictions.image_index
        labels, confidence = self.predictions.labels, self.predictions.confidence
        for row, position in enumerate(index):
            yield self.images.name(position), names[labels[row]], f"{confidence[row]:.6f}"


def readable(path: str) -> str:
    """Return a path with bytes that are no UTF-8 escaped, as JSON needs it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def read_card(folder: str | Path) -> dict[str, Any]:
    """Return what run.json says, or a clear error for a folder that is no complete run."""
    path = Path(folder) / CARD
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{str(folder)!r} is not a run folder: {CARD} is missing. Make one: captune adapt ... --out {folder}"
        ) from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{str(path)!r} cannot be read: {error}.") from error
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        raise RunFolderError(f"{str(path)!r} is not a {FORMAT} file.")
    if card.get("version") not in range(1, VERSION + 1):
        raise RunFolderError(
            f"The run {str(folder)!r} has format version {card.get('version')!r}, this captune reads up to {VERSION}. "
            "Upgrade captune: pip install -U captune."
        )
    return card


def load(folder: str | Path) -> Classifier:
    """Load the classifier of a run folder (or a folder that holds just a classifier)."""
    path = Path(folder)
    if (path / "classifier.json").is_file():
        return Classifier.load(path)
    read_card(path)
    return Classifier.load(path / CLASSIFIER)
