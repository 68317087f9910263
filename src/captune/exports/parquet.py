"""Labels as a Parquet table: path, label, class_id, confidence (needs pyarrow)."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from captune.core.errors import require
from captune.core.files import write_whole
from captune.exports.base import LabelFormat, LabelTable


class ParquetLabels(LabelFormat):
    """One row per image, with typed columns."""

    target = "labels.parquet"

    def write_labels(self, chosen: LabelTable, target: Path, prefix: str | None) -> None:
        """Write the table."""
        require("parquet", "pyarrow")
        import pyarrow
        from pyarrow import parquet

        columns = {
            "path": [path for path, _, _ in chosen.entries(prefix)],
            "label": [chosen.run.names[label] for label in chosen.labels],
            "class_id": pyarrow.array(chosen.labels),
            "confidence": pyarrow.array(chosen.confidence),
        }
        content = BytesIO()
        parquet.write_table(pyarrow.table(columns), content)
        write_whole(target, content.getvalue())
