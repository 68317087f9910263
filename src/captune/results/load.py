"""One way to load what a run left behind: its folder, or the ONNX file that was exported from it."""

from __future__ import annotations

from pathlib import Path

from captune.core.errors import RunFolderError
from captune.core.files import is_file, is_folder
from captune.results.image_classifier import ImageClassifier

ONNX = ".onnx"
MODEL = "model.onnx"
"""What an exported model is called unless it was told otherwise."""


def load(source: str | Path) -> ImageClassifier:
    """Load a classifier from a run folder (needs PyTorch), or from an `.onnx` file or the folder that it lies in."""
    path = Path(source)
    model = _find_model(path)
    if model is not None:
        from captune.results.onnx_classifier import OnnxClassifier

        return OnnxClassifier(model)
    from captune.results.run import load as load_run

    return load_run(path)


def _find_model(path: Path) -> Path | None:
    """Return the ONNX file that is meant, or None for what is or should be a run folder."""
    if not is_folder(path):
        if path.suffix.lower() == ONNX:
            return path
        if is_file(path):
            raise RunFolderError(
                f"{str(path)!r} is no classifier: expected a run folder or a file {MODEL} from "
                "captune export RUN --format onnx."
            )
        return None
    if is_file(path / "run.json") or is_file(path / "classifier.json"):
        return None
    if is_file(path / MODEL):
        return path / MODEL
    found = sorted(path.glob(f"*{ONNX}"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise RunFolderError(f"{str(path)!r} holds several ONNX files ({names}): name the one to load.")
    return found[0] if found else None
