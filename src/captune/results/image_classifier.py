"""The interface of every classifier, and `load`; neither PyTorch nor onnxruntime is imported until it is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from captune.core.arrays import Floats, Ints
from captune.core.errors import RunFolderError
from captune.core.files import is_file, is_folder
from captune.core.scratch import row_parts
from captune.data.decoding import as_image, is_image_array
from captune.data.views import Preprocessing, weak_view

BATCH = 64
ONNX = ".onnx"
MODEL = "model.onnx"
"""Default file name of an exported model."""


class ImageClassifier(ABC):
    """Classifies images: paths, Pillow images or arrays."""

    names: tuple[str, ...]
    """Class names; a class id is a position in this tuple."""

    preprocessing: Preprocessing

    @abstractmethod
    def score_views(self, views: NDArray[np.uint8]) -> Floats:
        """Return probabilities `(images, classes)` of decoded images `(images, height, width, 3)`."""

    def predict_proba(self, images: Iterable[object]) -> Floats:
        """Return probabilities `(images, classes)` of one or more paths, Pillow images or arrays."""
        is_one = isinstance(images, (str, Path, Image)) or (isinstance(images, np.ndarray) and is_image_array(images))
        sources: list[Any] = [images] if is_one else list(images)
        parts = [np.empty((0, len(self.names)), dtype=np.float32)]
        for start in range(0, len(sources), BATCH):
            batch = sources[start : start + BATCH]
            parts.append(self.score_views(np.stack([weak_view(as_image(s), self.preprocessing) for s in batch])))
        return np.concatenate(parts)

    def predict(self, images: Iterable[object]) -> list[str]:
        """Return the most probable class name of each image."""
        return [self.names[label] for label in self.predict_proba(images).argmax(axis=1)]


def top_k(probabilities: Floats, k: int) -> Ints:
    """Return the k most probable classes of each image, most probable first, `(images, k)`."""
    n_images, n_classes = probabilities.shape
    best = np.empty((n_images, min(k, n_classes)), dtype=np.int64)
    for rows in row_parts(n_images, n_classes):
        best[rows] = np.argsort(-probabilities[rows], axis=1, kind="stable")[:, : best.shape[1]]
    return best


def load(source: str | Path) -> ImageClassifier:
    """Load a classifier from a run folder, or from an `.onnx` file or its folder (which does not need PyTorch)."""
    path = Path(source)
    model = _find_onnx(path)
    if model is not None:
        from captune.results.onnx_classifier import OnnxClassifier

        return OnnxClassifier(model)
    from captune.results.classifier import CARD, Classifier
    from captune.results.run import CLASSIFIER, read_run_card

    if is_file(path / CARD):
        return Classifier.load(path)
    read_run_card(path)
    return Classifier.load(path / CLASSIFIER)


def _find_onnx(path: Path) -> Path | None:
    """Return the ONNX file that a path refers to, or None if it should be a run folder."""
    if not is_folder(path):
        if path.suffix.lower() == ONNX:
            return path
        if is_file(path):
            raise RunFolderError(
                f"{str(path)!r} is not a classifier: expected a run folder, or a file {MODEL} from "
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
        raise RunFolderError(f"{str(path)!r} contains several ONNX files ({names}). Pass the path of one of them.")
    return found[0] if found else None
