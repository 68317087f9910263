"""Labels as a CSV table: path, label, confidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from captune.core.files import table, write_whole
from captune.exports.base import OF_LABELS, ExportFormat, ExportSettings, choose_labels
from captune.results.run import Run


class CsvLabels(ExportFormat):
    """One row per image; captune reads this table with --labels."""

    target = "labels.csv"
    takes = OF_LABELS | {"prefix"}

    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the table."""
        chosen = choose_labels(run, settings)
        rows = ((path, chosen.class_names[c], f"{p:.6f}") for path, c, p in chosen.entries(settings.prefix))
        write_whole(target, table(("path", "label", "confidence"), rows))
        return [chosen.remark]
