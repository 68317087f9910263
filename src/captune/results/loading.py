"""One way to load what a run left behind: its folder, or the ONNX file that was exported from it."""

from __future__ import annotations

from pathlib import Path

from captune.files import is_folder
from captune.results.image_classifier import ImageClassifier


def load(source: str | Path) -> ImageClassifier:
    """Load a classifier from a run folder (needs PyTorch) or an `.onnx` file (needs onnxruntime only)."""
    path = Path(source)
    if path.suffix.lower() == ".onnx" and not is_folder(path):
        from captune.results.onnx_classifier import OnnxClassifier

        return OnnxClassifier(path)
    from captune.results.run import load as load_run

    return load_run(path)
