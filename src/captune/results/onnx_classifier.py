"""A classifier exported as an ONNX file, run by onnxruntime without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, check_embeddings, check_probabilities
from captune.core.cards import build_card, check_card, check_digest, parse_json
from captune.core.errors import ModelError, RunFolderError, missing_extra, raise_all
from captune.core.files import is_file
from captune.data.views import Preprocessing, TwoViews
from captune.data.vocabulary import name_problems
from captune.results.image_classifier import ImageClassifier

FORMAT, VERSION = "captune-onnx", 1
KEY = "captune"
"""Metadata entry that holds the `OnnxCard` as JSON."""
PIXELS, PROBABILITIES, EMBEDDINGS = "pixels", "probabilities", "embeddings"


@dataclass(frozen=True)
class OnnxCard:
    """Metadata of an exported model.

    Attributes:
        format: Always `captune-onnx`.
        version: Version of the format.
        made_by: Version of captune.
        names: Class names, in the order of the columns of `probabilities`.
        preprocessing: How images are converted to `pixels`.
        logit_scale: Factor of the cosines before the softmax; part of the graph.
        backbone: Id of the backbone.
        backbone_fingerprint: Digest of the backbone's weights.
        tuner: Id of the tuner, whose prompts or adapters are part of the graph.
        precision: `float32` or `int8`.
        check: Differences from PyTorch that were measured during the export.
        digest: Digest of everything above.
    """

    format: str
    version: int
    made_by: str
    names: tuple[str, ...]
    preprocessing: TwoViews | Preprocessing
    logit_scale: float
    backbone: str
    backbone_fingerprint: str
    tuner: str
    precision: str
    check: dict[str, Any]
    digest: str = ""


class OnnxClassifier(ImageClassifier):
    """An exported classifier; it predicts like the run it was exported from."""

    def __init__(self, model: str | Path | bytes) -> None:
        self.session = open_model(model)
        shown = "ONNX model" if isinstance(model, bytes) else str(model)
        self.card = _read_card(self.session.get_modelmeta().custom_metadata_map, shown)
        self.names, self.preprocessing = self.card.names, self.card.preprocessing
        _check_graph(self.session, len(self.names), shown)
        self.width = next(entry.shape[-1] for entry in self.session.get_outputs() if entry.name == EMBEDDINGS)

    def score_views(self, views: NDArray[np.uint8]) -> Floats:
        """Return probabilities `(images, classes)` of decoded images."""
        return self.score_pixels(self.preprocessing.standardize(views))

    def score_pixels(self, pixels: Floats) -> Floats:
        """Return probabilities `(images, classes)` of preprocessed images `(images, 3, height, width)`."""
        return check_probabilities(self._run(PROBABILITIES, pixels))

    def embed_views(self, views: NDArray[np.uint8]) -> Floats:
        """Return embeddings `(images, width)` of decoded images."""
        return self.embed_pixels(self.preprocessing.standardize(views))

    def embed_pixels(self, pixels: Floats) -> Floats:
        """Return embeddings `(images, width)` of preprocessed images."""
        return check_embeddings(self._run(EMBEDDINGS, pixels), "The ONNX model")

    def _run(self, output: str, pixels: Floats) -> Floats:
        try:
            return self.session.run([output], {PIXELS: pixels})[0]
        except Exception as error:  # onnxruntime has many error classes
            raise ModelError(f"The ONNX model cannot be run: {_reason(error)}. Export the run again.") from error

    def summary(self) -> dict[str, object]:
        """Return the classes, the backbone and the precision."""
        return {**super().summary(), "backbone": self.card.backbone, "precision": self.card.precision}


def open_model(model: str | Path | bytes) -> Any:  # noqa: ANN401 (onnxruntime has no types)
    """Return an onnxruntime session for a file or its content."""
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra("onnxruntime", "onnx") from error
    if not isinstance(model, bytes) and not is_file(model):
        raise RunFolderError(
            f"There is no ONNX file {str(model)!r}. Create one: captune export RUN --format onnx --out {model}"
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    available = onnxruntime.get_available_providers()
    providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    try:
        source = model if isinstance(model, bytes) else str(model)
        return onnxruntime.InferenceSession(source, options, providers=providers)
    except Exception as error:  # onnxruntime has many error classes
        shown = "The exported model" if isinstance(model, bytes) else f"{str(model)!r}"
        raise RunFolderError(
            f"{shown} cannot be opened by onnxruntime: {_reason(error)}. Export the run again."
        ) from error


def _reason(error: Exception) -> str:
    """Return the first line of a message, without the error codes in front."""
    return (str(error) or type(error).__name__).splitlines()[0].rsplit(" : ", 1)[-1].rstrip(".")[:300]


def _check_graph(session: Any, n_classes: int, shown: str) -> None:  # noqa: ANN401
    """Raise an error if the graph does not match its metadata."""
    inputs = {entry.name for entry in session.get_inputs()}
    outputs = {entry.name: entry.shape for entry in session.get_outputs()}
    columns = outputs.get(PROBABILITIES, [None, None])[-1]
    if inputs != {PIXELS} or not {PROBABILITIES, EMBEDDINGS} <= set(outputs) or columns != n_classes:
        raise RunFolderError(
            f"The graph of {shown!r} was changed: expected the input {PIXELS!r} and the outputs {PROBABILITIES!r} with "
            f"{n_classes} columns and {EMBEDDINGS!r}. Export the run again."
        )


def _read_card(metadata: dict[str, str], shown: str) -> OnnxCard:
    if KEY not in metadata:
        raise RunFolderError(
            f"{shown!r} was not made by captune: no {KEY!r} in its metadata. Make one: captune export RUN --format onnx"
        )
    try:
        raw = parse_json(metadata[KEY])
    except ValueError as error:
        raise RunFolderError(f"The metadata of {shown!r} cannot be read: {error}. Export the run again.") from error
    content = check_card(raw, shown, FORMAT, VERSION)
    check_digest(content, shown)
    card = build_card(OnnxCard, content, shown)
    raise_all(name_problems(card.names), f"The class names of {shown!r} cannot be used")
    return card
