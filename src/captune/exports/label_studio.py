"""Label Studio tasks with the labels as predictions, and the matching labeling interface."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from captune import __version__
from captune.core.files import write_json, write_whole
from captune.exports.base import LabelFormat, LabelTable

LOCAL_FILES = "/data/local-files/?d="
WEB = ("/", "http://", "https://")


class LabelStudioTasks(LabelFormat):
    """A JSON list of tasks to import, in which a person confirms or corrects the predictions."""

    target = "label-studio.json"

    def write_labels(self, chosen: LabelTable, target: Path, prefix: str | None) -> None:
        """Write the tasks, and the labeling interface as an XML file next to them."""
        tasks = []
        for name, label, confidence in chosen.entries():
            choice = {"choices": [chosen.run.names[label]]}
            result = {"from_name": "label", "to_name": "image", "type": "choices", "value": choice}
            version, score = f"captune {__version__}", round(confidence, 6)
            prediction = {"model_version": version, "score": score, "result": [result]}
            data = {"image": _address(LOCAL_FILES if prefix is None else prefix, name), "path": name}
            tasks.append({"data": data, "predictions": [prediction]})
        choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in chosen.run.names)
        interface = (
            '<View>\n  <Image name="image" value="$image"/>\n'
            f'  <Choices name="label" toName="image" choice="single">\n{choices}\n  </Choices>\n</View>\n'
        )
        write_whole(target.with_suffix(".xml"), interface)
        write_json(target, tasks)


def _address(prefix: str, name: str) -> str:
    """Percent-encode names in web addresses, but not after s3:// and the like."""
    return prefix + (quote(name) if prefix.startswith(WEB) else name)
