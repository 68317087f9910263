"""What `adapt` returns: the results of a run, to look at, to measure and to save."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.display import Displayed
from captune.core.errors import InputError
from captune.data.labels import read_labels
from captune.report.inline import Report, saved_page
from captune.report.page import write_report
from captune.results.metrics import Metrics, summarize
from captune.results.run import AdaptationRun, claim_folder
from captune.review.suggestions import Suggestion


@dataclass(frozen=True, repr=False)
class Run(Displayed, AdaptationRun):
    """The results of a run, with what needs the report, which is made from results."""

    def evaluate(self, labels: Any) -> Metrics:  # noqa: ANN401
        """Compare the predictions with labels: `folders`, a path, a mapping or one label per image."""
        truth = read_labels(labels, self.images, self.classifier.names)[self.predictions.image_index]
        known = truth >= 0
        if not known.any():
            raise InputError(f"None of the {len(truth)} readable images has a label.")
        return summarize(self.predictions.probabilities[known], truth[known], n_classes=len(self.classifier.names))

    def report(self, labels: Any = None) -> Report:  # noqa: ANN401
        """Return the report, which a notebook shows inline; with labels, it shows accuracies."""
        truth = None
        if labels is not None:
            truth = read_labels(labels, self.images, self.classifier.names)[self.predictions.image_index]
        return saved_page(super().save, lambda folder: write_report([folder], labels=truth))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the run folder with its report; a run that is there already is replaced only with `overwrite`."""
        with claim_folder(folder, overwrite) as target:
            super().save(target)
            write_report([target])
            return target

    def suggest(self, count: int = 20) -> list[Suggestion]:
        """Return images that are worth looking at; `captune.open_run` on the saved run records answers."""
        from captune.review.opening import session_of

        return session_of(self).suggest(count)

    def summary(self) -> dict[str, object]:
        """Return what matters most about the run."""
        names, predicted = self.classifier.names, np.unique(self.predictions.labels)
        health = self.evidence.health if self.evidence is not None else None
        return {
            "method": self.settings["method"],
            "images": len(self.predictions.image_index),
            "skipped": len(self.skipped),
            "classes": len(names),
            "never_predicted": len(names) - len(predicted),
            "mean_confidence": round(float(self.predictions.confidence.mean()), 3),
            "kept": self.kept,
            "health": None if health is None else health.verdict,
            "expected_change": None if health is None else round(health.expected_change, 4),
        }
