"""What every classifier answers, whether PyTorch or onnxruntime computes it; this file needs neither."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from captune.core.arrays import Floats, Ints
from captune.core.scratch import row_parts
from captune.data.decoding import as_image, is_image_array
from captune.data.views import Preprocessing, weak_view

AT_ONCE = 64


class ImageClassifier(ABC):
    """Names the classes of images: paths, Pillow images or arrays."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Return the class names; a class id is its position here."""

    @property
    @abstractmethod
    def preprocessing(self) -> Preprocessing:
        """Return how an image becomes the model's input."""

    @abstractmethod
    def score_views(self, views: NDArray[np.uint8]) -> Floats:
        """Return probabilities `(images, classes)` of decoded views `(images, height, width, 3)`."""

    def predict_proba(self, images: Iterable[object]) -> Floats:
        """Return probabilities `(images, classes)` of paths, Pillow images or arrays (or of one), in batches."""
        is_one = isinstance(images, (str, Path, Image)) or (isinstance(images, np.ndarray) and is_image_array(images))
        sources: list[Any] = [images] if is_one else list(images)
        parts = [np.empty((0, len(self.names)), dtype=np.float32)]
        for start in range(0, len(sources), AT_ONCE):
            chunk = sources[start : start + AT_ONCE]
            parts.append(self.score_views(np.stack([weak_view(as_image(s), self.preprocessing) for s in chunk])))
        return np.concatenate(parts)

    def predict(self, images: Iterable[object]) -> list[str]:
        """Return the most probable class name of each image."""
        return [self.names[label] for label in self.predict_proba(images).argmax(axis=1)]


def top_k(probabilities: Floats, k: int) -> Ints:
    """Return the k most probable classes of each image, best first, `(images, k)`."""
    n_images, n_classes = probabilities.shape
    best = np.empty((n_images, min(k, n_classes)), dtype=np.int64)
    for rows in row_parts(n_images, n_classes):
        best[rows] = np.argsort(-probabilities[rows], axis=1, kind="stable")[:, : best.shape[1]]
    return best
