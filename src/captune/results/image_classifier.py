"""The interface of every classifier, and `load`; neither PyTorch nor onnxruntime is imported until it is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints
from captune.core.display import Displayed, shortened
from captune.core.errors import InputError, RunFolderError
from captune.core.files import is_file, is_folder
from captune.core.restoring import unchanged
from captune.core.scratch import row_parts
from captune.data.decoding import UnreadableImageError
from captune.data.images import ImageCollection
from captune.data.inputs import Images, collect_images
from captune.data.labels import read_labels
from captune.data.precomputed import Embeddings
from captune.data.views import Preprocessing, weak_view

if TYPE_CHECKING:
    from captune.backbones.base import Backbone
    from captune.results.metrics import Metrics

BATCH = 64
ONNX = ".onnx"
MODEL = "model.onnx"
"""Default file name of an exported model."""


class ImageClassifier(Displayed, ABC):
    """Classifies whatever `adapt` takes as images: paths, Pillow images, arrays, datasets, tables or `Embeddings`."""

    names: tuple[str, ...]
    """Class names; a class id is a position in this tuple."""

    preprocessing: Preprocessing
    width: int
    """Width of the embeddings that `embed` returns."""

    @abstractmethod
    def score_views(self, views: NDArray[np.uint8]) -> Floats:
        """Return probabilities `(images, classes)` of decoded images `(images, height, width, 3)`."""

    @abstractmethod
    def embed_views(self, views: NDArray[np.uint8]) -> Floats:
        """Return embeddings `(images, width)` of decoded images `(images, height, width, 3)`."""

    def score_embeddings(self, vectors: Floats) -> Floats:
        """Return probabilities `(images, classes)` of embeddings, if the classifier can use them."""
        raise InputError("This classifier takes images, not embeddings. Load the run folder instead of its export.")

    def refine_embeddings(self, vectors: Floats) -> Floats:
        """Return the classifier's embeddings `(images, width)` of those of its backbone, if it can use them."""
        return self.score_embeddings(vectors)

    @property
    def classes_(self) -> NDArray[Any]:
        """Return the class names in the order of the columns of `predict_proba`, as scikit-learn calls them."""
        return np.asarray(self.names)

    def predict_proba(self, images: Images, *, image_column: str = "") -> Floats:
        """Return probabilities `(images, classes)` of whatever `adapt` takes as images, or of one image."""
        return self._compute(images, image_column, self.score_views, self.score_embeddings, len(self.names))

    def predict(self, images: Images, *, image_column: str = "") -> list[str]:
        """Return the most probable class name of each image."""
        return [self.names[label] for label in self.predict_proba(images, image_column=image_column).argmax(axis=1)]

    def embed(self, images: Images, *, image_column: str = "") -> Floats:
        """Return the embeddings `(images, width)` that the classifier compares with its classes."""
        return self._compute(images, image_column, self.embed_views, self.refine_embeddings, self.width)

    def evaluate(self, images: Images, labels: Any, *, image_column: str = "") -> Metrics:  # noqa: ANN401
        """Compare predictions with labels: `folders`, a path, a mapping or one label per image."""
        from captune.results.metrics import summarize

        collection = collect_images(images, column=image_column)
        truth = read_labels(labels, collection, self.names)
        known = np.flatnonzero(truth >= 0)
        if not len(known):
            raise InputError(f"None of the {len(collection)} images has a label.")
        return summarize(self.predict_proba(collection.subset(known)), truth[known], n_classes=len(self.names))

    def score(self, images: Images, labels: Any, *, image_column: str = "") -> float:  # noqa: ANN401
        """Return the accuracy on the labeled images."""
        return self.evaluate(images, labels, image_column=image_column).accuracy

    def summary(self) -> dict[str, object]:
        """Return the number of classes and their first names."""
        return {"classes": len(self.names), "names": shortened(list(self.names))}

    @unchanged()
    def _compute(
        self,
        images: Images,
        column: str,
        of_views: Callable[[NDArray[np.uint8]], Floats],
        of_embeddings: Callable[[Floats], Floats],
        n_columns: int,
    ) -> Floats:
        """Return one row per image, computed from decoded images or from embeddings."""
        if isinstance(images, (list, tuple)) and not images:
            return np.empty((0, n_columns), dtype=np.float32)
        collection = collect_images(images, column=column)
        if isinstance(collection, Embeddings):
            return of_embeddings(collection.vectors)
        parts = []
        for start in range(0, len(collection), BATCH):
            chunk = range(start, min(start + BATCH, len(collection)))
            parts.append(of_views(np.stack([self._read_view(collection, position) for position in chunk])))
        return np.concatenate(parts)

    def _read_view(self, images: ImageCollection, position: int) -> NDArray[np.uint8]:
        try:
            return weak_view(images.read(position).decode(), self.preprocessing)
        except UnreadableImageError as error:
            raise UnreadableImageError(f"Cannot use the image {images.name(position)!r}: {error}.") from error


def top_k(probabilities: Floats, k: int) -> Ints:
    """Return the k most probable classes of each image, most probable first, `(images, k)`."""
    n_images, n_classes = probabilities.shape
    best = np.empty((n_images, min(k, n_classes)), dtype=np.int64)
    for rows in row_parts(n_images, n_classes):
        best[rows] = np.argsort(-probabilities[rows], axis=1, kind="stable")[:, : best.shape[1]]
    return best


def load(source: str | Path, backbone: Backbone | None = None) -> ImageClassifier:
    """Load a classifier from a run folder, or from an `.onnx` file or its folder (which does not need PyTorch).

    Pass `backbone` if the model of the run was in memory: `captune.wrap(model, processor)`.
    """
    path = Path(source)
    model = find_onnx(path)
    if model is not None:
        from captune.results.onnx_classifier import OnnxClassifier

        return OnnxClassifier(model)
    from captune.results.classifier import CARD, Classifier
    from captune.results.run_folder import CLASSIFIER, read_run_card

    folder = path
    if not is_file(path / CARD):
        read_run_card(path)
        folder = path / CLASSIFIER
    with unchanged():  # after PyTorch was imported above
        return Classifier.load(folder, backbone)


def find_onnx(path: Path) -> Path | None:
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
