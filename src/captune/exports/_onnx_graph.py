"""From a classifier to the bytes of an ONNX file: prompts, adapters and class matrix become part of the graph."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from captune import __version__
from captune.core.errors import InputError, missing_extra
from captune.results.classifier import Classifier
from captune.results.onnx_classifier import EMBEDDINGS, FORMAT, KEY, PIXELS, PROBABILITIES, VERSION, OnnxCard

OPSET = 18
MOST_BYTES = 2_000_000_000
"""An ONNX file is one protobuf message, which cannot be longer."""


class WholeModel(nn.Module):
    """Preprocessed images in, probabilities and embeddings out."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        tuner = classifier.tuner
        # The tuner keeps its backbone out of the module tree; here both belong to it, so that all weights are found.
        self.parts = nn.ModuleList([tuner, *tuner.backbone.modules()])
        self.register_buffer("class_vectors", classifier.class_vectors.clone())

    class_vectors: Tensor

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities `(images, classes)` and embeddings `(images, width)`."""
        tuner: Any = self.parts[0]
        embeddings = tuner.image_embeddings(pixels)
        return tuner.logits(embeddings, self.class_vectors).softmax(dim=-1), embeddings


def require_onnx() -> None:
    """Say what to install where the packages are missing, before anything is loaded."""
    for package in ("onnx", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise missing_extra(package, "onnx") from error


def trace(classifier: Classifier) -> bytes:
    """Return the classifier as an ONNX model that takes batches of any size."""
    model = WholeModel(classifier).cpu().eval()
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in _image_weights(classifier))
    if n_bytes > MOST_BYTES:
        raise InputError(
            f"The image encoder of {classifier.backbone.identifier!r} has {n_bytes:,} bytes of weights, an ONNX file "
            f"holds at most {MOST_BYTES:,}. Choose a smaller backbone."
        )
    side = classifier.preprocessing.image_size
    try:
        with tempfile.TemporaryDirectory() as folder, _quiet(), torch.inference_mode():
            # The exporter by tracing: it takes a second where the one by torch.export takes ten, on every torch
            # that captune supports. What it makes is compared with PyTorch before it is written.
            torch.onnx.export(
                model,
                (torch.zeros(2, 3, side, side),),
                Path(folder) / "model.onnx",
                dynamo=False,
                opset_version=OPSET,
                input_names=[PIXELS],
                output_names=[PROBABILITIES, EMBEDDINGS],
                dynamic_axes={name: {0: "images"} for name in (PIXELS, PROBABILITIES, EMBEDDINGS)},
            )
            return (Path(folder) / "model.onnx").read_bytes()
    except Exception as error:  # each operator that ONNX lacks has an error of its own
        reason = str(error).splitlines()[0][:300]
        raise InputError(
            f"The tuner {classifier.tuner_name!r} on {classifier.backbone.identifier!r} cannot be written as ONNX: "
            f"{type(error).__name__}: {reason}. The run folder itself works with captune predict and captune.load."
        ) from error


def describe(classifier: Classifier) -> OnnxCard:
    """Return the metadata of a classifier, not yet checked."""
    return OnnxCard(
        format=FORMAT,
        version=VERSION,
        made_by=f"captune {__version__}",
        names=classifier.names,
        preprocessing=classifier.preprocessing,
        logit_scale=classifier.backbone.logit_scale,
        backbone=classifier.backbone.identifier,
        backbone_fingerprint=classifier.backbone.fingerprint(),
        tuner=classifier.tuner_name,
        precision="float32",
        check={},
    )


def with_card(content: bytes, card: OnnxCard) -> bytes:
    """Return the model with its metadata."""
    import onnx

    model = onnx.load_model_from_string(content)
    onnx.helper.set_model_props(model, {KEY: json.dumps(asdict(card), ensure_ascii=False)})
    model.producer_name, model.producer_version = "captune", __version__
    return model.SerializeToString()


def quantize(content: bytes, card: OnnxCard) -> tuple[bytes, OnnxCard]:
    """Return the model with 8-bit weights in its linear layers, and the card that says so."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load_model_from_string(content)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QUInt8,  # signed weights overflow on processors without VNNI
            nodes_to_exclude=_last_products(model),
        )
        return path.read_bytes(), replace(card, precision="int8", check={})


def _last_products(model: Any) -> list[str]:  # noqa: ANN401
    """Return the product with the class matrix: it is small, and what it loses shows at once."""
    products = [node.name for node in model.graph.node if node.op_type == "MatMul"]
    return products[-1:]


def _image_weights(classifier: Classifier) -> Iterator[Tensor]:
    tower = vars(classifier.backbone.image_tower)
    for module in (value for value in tower.values() if isinstance(value, nn.Module)):
        yield from module.state_dict().values()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's remarks off the screen: the comparison with PyTorch says more than they do."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
