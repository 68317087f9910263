"""Labels in COCO's layout: images, categories, and one annotation without a box for each image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from captune import __version__
from captune.core.files import write_json
from captune.exports._labels import TAKES, choose_labels
from captune.exports.base import ExportFormat, ExportSettings, FinishedRun


class CocoLabels(ExportFormat):
    """Image-level annotations; ids count from 1, as COCO's do."""

    target: ClassVar[str] = "coco.json"
    takes: ClassVar[frozenset[str]] = TAKES | {"prefix"}

    def write(self, run: FinishedRun, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the JSON file."""
        chosen = choose_labels(run, settings)
        content = {
            "info": {"description": f"captune {__version__}, method {run.record.method}: labels made by a model"},
            "images": [
                {"id": i, "file_name": f"{settings.prefix or ''}{name}"} for i, name in enumerate(chosen.names, start=1)
            ],
            "categories": [{"id": i, "name": name} for i, name in enumerate(chosen.class_names, start=1)],
            "annotations": [
                {"id": i, "image_id": i, "category_id": label + 1, "score": round(sure, 6)}
                for i, (label, sure) in enumerate(
                    zip(chosen.labels.tolist(), chosen.confidence.tolist(), strict=True), start=1
                )
            ],
        }
        write_json(target, content)
        return [f"{len(chosen)} annotations of {len(run.record.images)} images."]
