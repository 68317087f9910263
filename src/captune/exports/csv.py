"""Labels as a CSV table: path, label, confidence."""

from __future__ import annotations

from pathlib import Path

from captune.core.files import table, write_whole
from captune.exports.base import LabelFormat, LabelTable


class CsvLabels(LabelFormat):
    """One row per image; captune reads this table with --labels."""

    target = "labels.csv"

    def write_labels(self, chosen: LabelTable, target: Path, prefix: str | None) -> None:
        """Write the table."""
        rows = ((path, chosen.run.names[c], f"{p:.6f}") for path, c, p in chosen.entries(prefix))
        write_whole(target, table(("path", "label", "confidence"), rows))
