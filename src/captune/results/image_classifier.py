"""The interface of every classifier, `load`, and exported models, which onnxruntime runs without PyTorch."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints, Positions, check_embeddings, check_probabilities, row_parts
from captune.core.errors import InputError, ModelError, RunFolderError, import_extra, raise_all
from captune.core.files import build_card, check_card, check_digest, is_file, is_folder, parse_json
from captune.core.runtime import default_workers, unchanged
from captune.core.settings import RunSettings
from captune.core.text import Displayed, shortened
from captune.data.decoding import UnreadableImageError
from captune.data.images import ImageCollection, no_usable_image
from captune.data.inputs import Images, collect_images
from captune.data.labels import read_labels
from captune.data.precomputed import Embeddings
from captune.data.views import Preprocessing, weak_view
from captune.data.vocabulary import name_problems
from captune.embeddings.predictions import Predictions

if TYPE_CHECKING:
    from captune.backbones.base import Backbone
    from captune.results.metrics import Metrics

BATCH = 32
ONNX = ".onnx"
MODEL = "model.onnx"
"""Default file name of an exported model."""
ONNX_FORMAT, ONNX_VERSION = "captune-onnx", 1
KEY = "captune"
"""Metadata entry of an exported model that holds the `OnnxCard` as JSON."""
PIXELS = "pixels"
PROBABILITIES: Final = "probabilities"
EMBEDDINGS: Final = "embeddings"
Output: TypeAlias = Literal["probabilities", "embeddings"]


class SkippedWarning(UserWarning):
    """Some images cannot be read; the message names them."""


class UnknownLabelWarning(UserWarning):
    """Some labels are no classes of the classifier, so their images are not evaluated."""


class ImageClassifier(Displayed, ABC):
    """Classifies whatever `adapt` takes as images: paths, Pillow images, arrays, datasets, tables or `Embeddings`."""

    names: tuple[str, ...]
    """Class names; a class id is a position in this tuple."""

    preprocessing: Preprocessing
    width: int
    """Width of the embeddings that `embed` returns."""

    @abstractmethod
    def score_views(self, views: NDArray[np.uint8], output: Output = PROBABILITIES) -> Floats:
        """Return probabilities, or what they are computed from, of decoded images `(images, height, width, 3)`."""

    def score_embeddings(self, vectors: Floats, output: Output = PROBABILITIES) -> Floats:
        """Return the same of the backbone's embeddings `(images, width)`, if the classifier can use them."""
        raise InputError("This classifier takes images, not embeddings. Load the run folder instead of its export.")

    @property
    def classes_(self) -> NDArray[Any]:
        """Return the class names in the order of the columns of `predict_proba`, as scikit-learn calls them."""
        return np.asarray(self.names)

    def predictions(
        self, images: Images, *, image_column: str = "", settings: RunSettings | None = None, quiet: bool = True
    ) -> Predictions:
        """Return the probabilities of the readable images of whatever `adapt` takes, and why others were skipped.

        `settings` say where to compute and which cache to use; without them, a few images are classified at once.
        """
        return self._compute(collect_images(images, column=image_column), PROBABILITIES, settings, quiet)

    def predict_proba(self, images: Images, *, image_column: str = "") -> Floats:
        """Return probabilities `(images, classes)`; an image that cannot be read has a row of NaN and a warning."""
        return self._all_rows(images, image_column, PROBABILITIES, len(self.names))

    def predict(self, images: Images, *, image_column: str = "") -> list[str | None]:
        """Return the most probable class name of each image; None, and a warning, for one that cannot be read."""
        rows = self.predict_proba(images, image_column=image_column)
        return [None if np.isnan(row[0]) else self.names[row.argmax()] for row in rows]

    def embed(self, images: Images, *, image_column: str = "") -> Floats:
        """Return the embeddings `(images, width)` that are compared with the classes; NaN as in `predict_proba`."""
        return self._all_rows(images, image_column, EMBEDDINGS, self.width)

    def evaluate(
        self,
        images: Images,
        labels: Any,  # noqa: ANN401 (what `read_labels` takes)
        *,
        image_column: str = "",
        rename: Mapping[str, str] | None = None,
        settings: RunSettings | None = None,
    ) -> Metrics:
        """Compare predictions with labels: `folders`, a path, a mapping or one label per image.

        Images that cannot be read, and labels that are no classes, are left out with a warning. `rename` maps names in
        the labels to those of the classifier.
        """
        from captune.results.metrics import summarize

        collection = collect_images(images, column=image_column)
        unknown: list[str] = []
        truth = read_labels(labels, collection, self.names, rename, unknown)
        if unknown:
            warnings.warn(f"Some labels are left out: {' '.join(unknown)}", UnknownLabelWarning, stacklevel=2)
        if not np.any(truth >= 0):
            raise InputError(f"None of the {len(collection)} images has a label.")
        known = np.flatnonzero(truth >= 0)
        found = self.predictions(collection.subset(known), settings=settings)
        _warn_of_skipped(found.skipped, collection.subset(known))
        return summarize(found.probabilities, truth[known][found.image_index], n_classes=len(self.names))

    def score(self, images: Images, labels: Any, *, image_column: str = "") -> float:  # noqa: ANN401
        """Return the accuracy on the labeled images."""
        return self.evaluate(images, labels, image_column=image_column).accuracy

    def summary(self) -> dict[str, object]:
        """Return the number of classes and their first names."""
        return {"classes": len(self.names), "names": shortened(list(self.names))}

    def _all_rows(self, images: Images, column: str, output: Output, width: int) -> Floats:
        """Return one row per image, NaN for those that cannot be read."""
        if isinstance(images, (list, tuple)) and not images:
            return np.empty((0, width), dtype=np.float32)
        collection = collect_images(images, column=column)
        found = self._compute(collection, output)
        if not found.skipped:
            return found.probabilities
        _warn_of_skipped(found.skipped, collection)
        rows = np.full((len(collection), width), np.nan, dtype=np.float32)
        rows[found.image_index] = found.probabilities
        return rows

    @unchanged()
    def _compute(
        self, images: ImageCollection, output: Output, settings: RunSettings | None = None, quiet: bool = True
    ) -> Predictions:
        """Decode images in threads and compute their rows; Pillow releases the interpreter lock."""
        if isinstance(images, Embeddings):
            return self._rows(images, np.arange(len(images)), self.score_embeddings(images.vectors, output), {})
        workers = default_workers() if settings is None or settings.workers < 0 else settings.workers
        index, skipped = list[int](), dict[int, str]()
        parts = [np.empty((0, len(self.names) if output == PROBABILITIES else self.width), dtype=np.float32)]
        with ThreadPoolExecutor(max(1, workers)) as pool:
            for start in range(0, len(images), BATCH):
                positions, good = range(start, min(start + BATCH, len(images))), list[NDArray[np.uint8]]()
                views = pool.map(lambda i: read_view(images, i, self.preprocessing), positions)
                for position, view in zip(positions, views, strict=True):
                    if isinstance(view, str):
                        skipped[position] = view
                    else:
                        index.append(position)
                        good.append(view)
                if good:
                    parts.append(self.score_views(np.stack(good), output))
        return self._rows(images, np.asarray(index, dtype=np.int64), np.concatenate(parts), skipped)

    def _rows(self, images: ImageCollection, index: Ints, rows: Floats, skipped: Mapping[int, str]) -> Predictions:
        """Return rows of the readable images, probabilities or embeddings, if there is at least one."""
        if not len(index):
            raise InputError(no_usable_image(images, skipped))
        return Predictions(Positions(index), rows, self.names, images, skipped=skipped)


def read_view(images: ImageCollection, position: int, preprocessing: Preprocessing) -> NDArray[np.uint8] | str:
    """Return one decoded image of a collection, or why it cannot be read."""
    try:
        return weak_view(images.read(position).decode(), preprocessing)
    except UnreadableImageError as error:
        return str(error)


def _warn_of_skipped(skipped: Mapping[int, str], images: ImageCollection) -> None:
    if skipped:
        listed = "; ".join(f"{images.name(position)}: {reason}" for position, reason in list(skipped.items())[:5])
        told = f"{listed}{', ...' if len(skipped) > 5 else ''}"
        warnings.warn(f"{len(skipped)} of {len(images)} images cannot be read ({told}).", SkippedWarning, stacklevel=4)


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
    if (model := find_onnx(path)) is not None:
        return OnnxClassifier(model)
    from captune.results.classifier import CARD, Classifier
    from captune.results.run_folder import CLASSIFIER, read_run_card

    if not is_file(path / CARD):
        read_run_card(path)
        path = path / CLASSIFIER
    with unchanged():  # after PyTorch was imported above
        return Classifier.load(path, backbone)


def find_onnx(path: Path) -> Path | None:
    """Return the ONNX file that a path refers to, or None if it should be a run folder."""
    if is_folder(path):
        if is_file(path / "run.json") or is_file(path / "classifier.json"):
            return None
        found = [path / MODEL] if is_file(path / MODEL) else sorted(path.glob(f"*{ONNX}"))
        if len(found) > 1:
            raise RunFolderError(f"There are several ONNX files: {', '.join(map(str, found))}. Pass one of them.")
        return found[0] if found else None
    if path.suffix.lower() == ONNX:
        return path
    if is_file(path):
        raise RunFolderError(f"{str(path)!r} is not a classifier: expected a run folder, or an ONNX export of one.")
    return None


@dataclass(frozen=True)
class OnnxCard:
    """Metadata of an exported model; the columns of `probabilities` are in the order of `names`."""

    made_by: str
    names: tuple[str, ...]
    preprocessing: Preprocessing
    logit_scale: float
    backbone: str
    backbone_fingerprint: str
    tuner: str
    precision: str
    check: dict[str, Any]
    format: str = ONNX_FORMAT
    version: int = ONNX_VERSION
    digest: str = ""


class OnnxClassifier(ImageClassifier):
    """An exported classifier; it predicts like the run it was exported from."""

    def __init__(self, model: str | Path | bytes) -> None:
        shown = "the exported model" if isinstance(model, bytes) else str(model)
        self.session = _open_model(model, shown)
        try:
            raw = parse_json(self.session.get_modelmeta().custom_metadata_map[KEY])
        except (KeyError, ValueError) as error:
            problem = f"{shown!r} was not made by captune, or its metadata {KEY!r} is damaged: {error}."
            raise RunFolderError(f"{problem} Make one: captune export RUN --format onnx") from error
        content = check_card(raw, shown, ONNX_FORMAT, ONNX_VERSION)
        check_digest(content, shown)
        self.card = build_card(OnnxCard, content, shown)
        raise_all(name_problems(self.card.names), f"The class names of {shown!r} cannot be used")
        self.names, self.preprocessing = self.card.names, self.card.preprocessing
        inputs = [entry.name for entry in self.session.get_inputs()]
        shapes = {entry.name: entry.shape for entry in self.session.get_outputs()}
        self.width = shapes.get(EMBEDDINGS, [0])[-1]
        if inputs != [PIXELS] or not self.width or shapes.get(PROBABILITIES, [0])[-1] != len(self.names):
            raise RunFolderError(
                f"The graph of {shown!r} was changed: expected the input {PIXELS!r} and the outputs {EMBEDDINGS!r} and "
                f"{PROBABILITIES!r} with {len(self.names)} columns. Export the run again."
            )

    def score_views(self, views: NDArray[np.uint8], output: Output = PROBABILITIES) -> Floats:
        """Return an output of the graph for decoded images."""
        try:
            rows = self.session.run([output], {PIXELS: self.preprocessing.standardize(views)})[0]
        except Exception as error:  # onnxruntime has many error classes
            raise ModelError(f"The ONNX model cannot be run: {_reason(error)}. Export the run again.") from error
        return check_probabilities(rows) if output == PROBABILITIES else check_embeddings(rows, "The ONNX model")

    def summary(self) -> dict[str, object]:
        """Return the classes, the backbone and the precision."""
        return {**super().summary(), "backbone": self.card.backbone, "precision": self.card.precision}


def _open_model(model: str | Path | bytes, shown: str) -> Any:  # noqa: ANN401 (onnxruntime has no types)
    onnxruntime = import_extra("onnxruntime", "onnx")
    if not isinstance(model, bytes) and not is_file(model):
        raise RunFolderError(f"There is no ONNX file {shown!r}. Create one: captune export RUN --format onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    available = onnxruntime.get_available_providers()
    providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    try:
        return onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else str(model), options, providers=providers
        )
    except Exception as error:  # onnxruntime has many error classes
        problem = f"{shown!r} cannot be opened by onnxruntime: {_reason(error)}. Export the run again."
        raise RunFolderError(problem) from error


def _reason(error: Exception) -> str:  # the first line, without the error codes in front
    return (str(error) or type(error).__name__).splitlines()[0].rsplit(" : ", 1)[-1].rstrip(".")[:300]
