"""Labels as a Parquet table: path, label, class_id, confidence (needs pyarrow)."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from captune.core.errors import missing_extra
from captune.core.files import write_whole
from captune.exports.base import OF_LABELS, ExportFormat, ExportSettings, choose_labels
from captune.results.run import Run


class ParquetLabels(ExportFormat):
    """One row per image, with typed columns."""

    target = "labels.parquet"
    takes = OF_LABELS | {"prefix"}

    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the table."""
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise missing_extra("pyarrow", "parquet") from error
        chosen = choose_labels(run, settings)
        columns = {
            "path": [path for path, _, _ in chosen.entries(settings.prefix)],
            "label": [chosen.class_names[label] for label in chosen.labels],
            "class_id": pyarrow.array(chosen.labels),
            "confidence": pyarrow.array(chosen.confidence),
        }
        content = BytesIO()
        parquet.write_table(pyarrow.table(columns), content)
        write_whole(target, content.getvalue())
        return [chosen.remark]
