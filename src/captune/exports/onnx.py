"""The classifier as an ONNX file, checked against PyTorch on real images; --int8 adds a smaller one."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from captune import __version__
from captune.backbones.joined import Joined
from captune.core.cards import add_digest
from captune.core.errors import CaptuneError, InputError, missing_extra
from captune.core.files import write_whole
from captune.exports._checking import compare, read_examples, require_agreement
from captune.exports.base import ExportFormat, ExportSettings
from captune.results.classifier import Classifier
from captune.results.image_classifier import (
    EMBEDDINGS,
    KEY,
    ONNX_FORMAT,
    ONNX_VERSION,
    PIXELS,
    PROBABILITIES,
    OnnxCard,
    OnnxClassifier,
)
from captune.results.run import Run

OPSET = 18
MOST_BYTES = 2_000_000_000
"""An ONNX file is a protobuf message, whose size is limited."""


class OnnxModel(ExportFormat):
    """The image encoder with prompts, adapters and class vectors: pixels in, probabilities and embeddings out."""

    target = "model.onnx"
    takes = frozenset({"images", "labels", "n_checked", "int8"})

    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Trace, check and write the model; nothing is written if its predictions differ from PyTorch's."""
        _require_onnx()
        examples = read_examples(run, settings)
        card, content = _describe(run.classifier), trace(run.classifier)
        facts = compare(OnnxClassifier(_with_card(content, card)).score_views, examples)
        require_agreement(facts)
        write_whole(target, _with_card(content, replace(card, check=facts)))
        remarks = [_remark("float32", target, facts)]
        if settings.int8:
            content, card = _quantize(content), replace(card, precision="int8")
            facts = compare(OnnxClassifier(_with_card(content, card)).score_views, examples)
            target = target.with_name(f"{target.stem}.int8{target.suffix}")
            write_whole(target, _with_card(content, replace(card, check=facts)))
            remarks.append(_remark("int8", target, facts))
        return remarks


class _WholeModel(nn.Module):
    """Preprocessed images in, probabilities and embeddings out."""

    class_vectors: Tensor

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        tuner = classifier.tuner
        # A tuner keeps its backbone out of the module tree, but the exporter must find all weights.
        self.parts = nn.ModuleList([tuner, *tuner.backbone.modules()])
        self.register_buffer("class_vectors", classifier.class_vectors.clone())
        self.n_parts = classifier.n_parts

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities `(images, classes)` and embeddings `(images, width)`."""
        tuner: Any = self.parts[0]
        embeddings = tuner.image_embeddings(pixels)
        scores = tuner.logits(embeddings, self.class_vectors)
        if self.n_parts is not None:  # a class is as probable as its most probable part
            scores = torch.stack([part.amax(dim=1) for part in scores.split(self.n_parts, dim=1)], dim=1)
        return scores.softmax(dim=-1), embeddings


def trace(classifier: Classifier) -> bytes:
    """Return the classifier as an ONNX model for batches of any size."""
    model = _WholeModel(classifier).cpu().eval()
    backbone = classifier.backbone
    towers = [backbone.image_tower]
    if isinstance(backbone, Joined) and backbone.second is not None:
        towers.append(backbone.second.image_tower)
    weights = [tensor for tower in towers for part in tower.modules for tensor in part.state_dict().values()]
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in weights)
    if n_bytes > MOST_BYTES:
        raise InputError(
            f"The image encoder of {classifier.backbone.identifier!r} has {n_bytes:,} bytes of weights, but an ONNX "
            f"file can hold at most {MOST_BYTES:,}. Choose a smaller backbone."
        )
    try:
        with _scratch() as folder, _quiet(), torch.inference_mode():
            # Tracing takes one second, torch.export ten, and tracing works with every supported version of torch.
            torch.onnx.export(
                model,
                (torch.zeros(2, 3, *classifier.preprocessing.shape),),
                folder / "model.onnx",
                dynamo=False,
                opset_version=OPSET,
                input_names=[PIXELS],
                output_names=[PROBABILITIES, EMBEDDINGS],
                dynamic_axes={name: {0: "images"} for name in (PIXELS, PROBABILITIES, EMBEDDINGS)},
            )
            return (folder / "model.onnx").read_bytes()
    except CaptuneError:
        raise
    except Exception as error:  # each unsupported operator has its own error class
        reason = str(error).splitlines()[0][:300]
        raise InputError(
            f"The tuner {classifier.tuner_name!r} on {classifier.backbone.identifier!r} cannot be converted to ONNX: "
            f"{type(error).__name__}: {reason}. Use the run folder with captune predict or captune.load instead."
        ) from error


def _require_onnx() -> None:
    for package in ("onnx", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise missing_extra(package, "onnx") from error


def _describe(classifier: Classifier) -> OnnxCard:
    return OnnxCard(
        format=ONNX_FORMAT,
        version=ONNX_VERSION,
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


def _with_card(content: bytes, card: OnnxCard) -> bytes:
    """Return the model with its metadata."""
    import onnx

    model = onnx.load_model_from_string(content)
    onnx.helper.set_model_props(model, {KEY: json.dumps(add_digest(asdict(card)), ensure_ascii=False)})
    model.producer_name, model.producer_version = "captune", __version__
    return model.SerializeToString()


def _quantize(content: bytes) -> bytes:
    """Return the model with 8-bit weights in its linear layers."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load_model_from_string(content)
    products = [node.name for node in model.graph.node if node.op_type == "MatMul"]
    with _scratch() as folder, _quiet():
        path = folder / "int8.onnx"
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QUInt8,  # signed weights overflow on processors without VNNI
            nodes_to_exclude=products[-1:],  # the class vectors: few weights, and rounding them costs accuracy
        )
        return path.read_bytes()


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a temporary folder; a disk that is full is told as such."""
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:
        raise CaptuneError(
            f"The temporary file {error.filename or ''!r} cannot be written: {error.strerror or error}. Free space, or "
            "choose another folder for temporary files with TMPDIR."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings; its result is compared with PyTorch."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)


def _remark(precision: str, path: Path, facts: dict[str, Any]) -> str:
    remark = (
        f"{precision}: {path.stat().st_size / 1e6:.1f} MB; on {facts['n_images']} images, probabilities differ from "
        f"PyTorch's by at most {facts['max_difference']:.1e} (mean {facts['mean_difference']:.1e}), and "
        f"{facts['same_top_1']:.2%} of the predictions agree; {1000 * facts['seconds_per_image']:.0f} ms per image."
    )
    if "accuracy" in facts:
        remark += f" Accuracy {facts['accuracy']:.2%}, PyTorch {facts['accuracy_pytorch']:.2%}."
    return remark
