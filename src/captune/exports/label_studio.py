"""Label Studio tasks with the labels as predictions, and the matching labeling interface."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from captune import __version__
from captune.core.files import write_json, write_whole
from captune.exports.base import OF_LABELS, ExportFormat, ExportSettings, choose_labels
from captune.results.run import Run

LOCAL_FILES = "/data/local-files/?d="
WEB = ("/", "http://", "https://")


class LabelStudioTasks(ExportFormat):
    """A JSON list of tasks to import, in which a person confirms or corrects the predictions."""

    target = "label-studio.json"
    takes = OF_LABELS | {"prefix"}

    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the tasks, and the labeling interface as an XML file next to them."""
        chosen = choose_labels(run, settings)
        prefix = LOCAL_FILES if settings.prefix is None else settings.prefix
        version = f"captune {__version__} {run.method}"
        tasks = []
        for name, label, confidence in chosen.entries():
            choice = {"choices": [chosen.class_names[label]]}
            result = {"from_name": "label", "to_name": "image", "type": "choices", "value": choice}
            prediction = {"model_version": version, "score": round(confidence, 6), "result": [result]}
            tasks.append({"data": {"image": _address(prefix, name), "path": name}, "predictions": [prediction]})
        interface = target.with_suffix(".xml")
        write_whole(interface, _interface(chosen.class_names))
        write_json(target, tasks)
        return [chosen.remark, f"Labeling interface: {interface}"]


def _address(prefix: str, name: str) -> str:
    """Percent-encode names in web addresses, but not after s3:// and the like."""
    return prefix + (quote(name) if prefix.startswith(WEB) else name)


def _interface(class_names: Sequence[str]) -> str:
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in class_names)
    return (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <Choices name="label" toName="image" choice="single">\n{choices}\n  </Choices>\n</View>\n'
    )
