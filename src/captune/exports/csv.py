"""Labels as a CSV table: path, label, confidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from captune.core.files import table, write_whole
from captune.exports._labels import TAKES, choose_labels
from captune.exports.base import ExportFormat, ExportSettings, FinishedRun


class CsvLabels(ExportFormat):
    """One row for each image, as captune itself reads labels with --labels."""

    target: ClassVar[str] = "labels.csv"
    takes: ClassVar[frozenset[str]] = TAKES | {"prefix"}

    def write(self, run: FinishedRun, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the table."""
        chosen = choose_labels(run, settings)
        rows = (
            (f"{settings.prefix or ''}{name}", chosen.class_names[label], f"{sure:.6f}")
            for name, label, sure in zip(chosen.names, chosen.labels, chosen.confidence, strict=True)
        )
        write_whole(target, table(("path", "label", "confidence"), rows))
        return [f"{len(chosen)} labels of {len(run.record.images)} images."]
