"""Labels in COCO's JSON format: images, categories, and one annotation without a box per image."""

from __future__ import annotations

from pathlib import Path

from captune import __version__
from captune.core.files import write_json
from captune.exports.base import LabelFormat, LabelTable


class CocoLabels(LabelFormat):
    """Image-level annotations; ids start at 1, as in COCO."""

    target = "coco.json"

    def write_labels(self, chosen: LabelTable, target: Path, prefix: str | None) -> None:
        """Write the JSON file."""
        entries = list(enumerate(chosen.entries(prefix), start=1))
        content = {
            "info": {"description": f"Labels predicted by captune {__version__}"},
            "images": [{"id": i, "file_name": path} for i, (path, _, _) in entries],
            "categories": [{"id": i, "name": name} for i, name in enumerate(chosen.run.names, start=1)],
            "annotations": [
                {"id": i, "image_id": i, "category_id": label + 1, "score": round(confidence, 6)}
                for i, (_, label, confidence) in entries
            ],
        }
        write_json(target, content)
