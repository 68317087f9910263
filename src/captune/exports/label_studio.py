"""Tasks for Label Studio with the labels as predictions, and the labeling interface that fits them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from captune import __version__
from captune.core.files import write_json, write_whole
from captune.exports._labels import TAKES, choose_labels
from captune.exports.base import ExportFormat, ExportSettings, FinishedRun

LOCAL_FILES = "/data/local-files/?d="
WEB = ("/", "http://", "https://")


class LabelStudioTasks(ExportFormat):
    """A JSON list of tasks to import; a person confirms or corrects what the model says."""

    target: ClassVar[str] = "label-studio.json"
    takes: ClassVar[frozenset[str]] = TAKES | {"prefix"}

    def write(self, run: FinishedRun, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the tasks, and beside them an XML file with the interface."""
        chosen = choose_labels(run, settings)
        prefix = LOCAL_FILES if settings.prefix is None else settings.prefix
        version = f"captune {__version__} {run.record.method}"
        tasks = [
            _task(_address(prefix, name), name, chosen.class_names[label], float(sure), version)
            for name, label, sure in zip(chosen.names, chosen.labels, chosen.confidence, strict=True)
        ]
        interface = target.with_suffix(".xml")
        write_whole(interface, _interface(chosen.class_names))
        write_json(target, tasks)
        return [f"{len(chosen)} tasks of {len(run.record.images)} images.", f"Labeling interface: {interface}"]


def _task(address: str, name: str, label: str, sure: float, version: str) -> dict[str, object]:
    choice = {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": [label]}}
    prediction = {"model_version": version, "score": round(sure, 6), "result": [choice]}
    return {"data": {"image": address, "path": name}, "predictions": [prediction]}


def _address(prefix: str, name: str) -> str:
    """Names in web addresses are percent-encoded; after s3:// and the like they stand as they are."""
    return prefix + (quote(name) if prefix.startswith(WEB) else name)


def _interface(class_names: Sequence[str]) -> str:
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in class_names)
    return (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <Choices name="label" toName="image" choice="single">\n{choices}\n  </Choices>\n</View>\n'
    )
