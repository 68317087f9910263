"""The classifier as an ONNX file, checked against PyTorch on real images; --int8 adds a smaller one."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from captune import __version__
from captune.core.arrays import Floats, Ints, evenly_spaced
from captune.core.errors import CaptuneError, InputError, require
from captune.core.files import add_digest, write_whole
from captune.core.text import option
from captune.data.images import find_images
from captune.data.labels import read_labels
from captune.exports.base import ExportFormat, ExportSettings
from captune.results.classifier import Classifier
from captune.results.image_classifier import (
    BATCH,
    EMBEDDINGS,
    KEY,
    PIXELS,
    PROBABILITIES,
    OnnxCard,
    OnnxClassifier,
    read_view,
)
from captune.results.run import Run

OPSET = 18
TOLERANCE = 1e-4
N_CHECKED = 64


class OnnxModel(ExportFormat):
    """The image encoder with prompts, adapters and class vectors: pixels in, probabilities and embeddings out."""

    target = "model.onnx"
    takes = frozenset({"images", "labels", "n_checked", "int8"})

    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Trace, check and write the model; nothing is written if its predictions differ from PyTorch's."""
        require("onnx", "onnx", "onnxruntime")
        examples, classifier, backbone = read_examples(run, settings), run.classifier, run.classifier.backbone
        return write_onnx(
            _WholeModel(classifier),
            target,
            examples,
            settings.int8,
            names=classifier.names,
            preprocessing=classifier.preprocessing,
            logit_scale=backbone.logit_scale,
            backbone=backbone.identifier,
            backbone_fingerprint=backbone.fingerprint(),
            tuner=classifier.tuner_name,
        )


def write_onnx(
    module: nn.Module,
    target: Path,
    examples: Examples,
    int8: bool = False,
    **facts: Any,  # noqa: ANN401
) -> list[str]:
    """Trace, check and write a module that returns probabilities and embeddings; `facts` are fields of `OnnxCard`."""
    made_by = f"captune {__version__}"
    card = OnnxCard(made_by=made_by, precision="float32", check={}, **facts)
    content = _trace(module, card)
    remarks = [_write_model(content, card, target, examples)]
    if int8:
        target = target.with_name(f"{target.stem}.int8{target.suffix}")
        remarks.append(_write_model(_quantize(content), replace(card, precision="int8"), target, examples))
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


class Examples(NamedTuple):
    """Decoded images with the probabilities that PyTorch computes for them, and their classes (-1: unknown), if any."""

    views: NDArray[np.uint8]
    probabilities: Floats
    truth: Ints | None = None


def read_examples(run: Run, settings: ExportSettings) -> Examples:
    """Read an evenly spaced sample of the run's images (or of --images) and classify it with PyTorch."""
    classifier = run.classifier
    if not classifier.backbone.has_image_encoder:
        raise InputError(
            f"The run {str(run.folder)!r} was made from embeddings and has no image encoder to export. Adapt with a "
            "backbone, or export its labels (csv, parquet, label-studio, coco, cleanlab)."
        )
    images = run.readable if settings.images is None else find_images(settings.images)
    truth = None if settings.labels is None else read_labels(settings.labels, images, classifier.names)
    candidates = np.arange(len(images)) if truth is None else np.flatnonzero(truth >= 0)
    if len(candidates):
        most = settings.n_checked or (N_CHECKED if truth is None else len(candidates))
        candidates = candidates[evenly_spaced(len(candidates), most)]
    views = ((i, read_view(images, i, classifier.preprocessing)) for i in candidates.tolist())
    readable = {i: view for i, view in views if not isinstance(view, str)}
    if not readable:
        raise InputError(
            f"No {'labeled ' if truth is not None else ''}image can be read at {str(images.root)!r}, but an export is "
            f"checked with real images. Pass a folder of images as {option('images')}."
        )
    stacked = np.stack(list(readable.values()))
    parts = [classifier.score_views(stacked[i : i + BATCH]) for i in range(0, len(stacked), BATCH)]
    return Examples(stacked, np.concatenate(parts), None if truth is None else truth[list(readable)])


def compare(score: Callable[[NDArray[np.uint8]], Floats], examples: Examples, is_exact: bool = True) -> dict[str, Any]:
    """Return how far a model is from PyTorch, which is an error if it `is_exact`, and its accuracy on known labels."""
    views, expected = examples.views, examples.probabilities
    # A single image, then batches: a model that was traced with a fixed batch size fails here.
    parts = np.split(views, range(1, len(views), BATCH))
    found = np.concatenate([score(part) for part in parts])
    difference, own, theirs = np.abs(found - expected), found.argmax(axis=1), expected.argmax(axis=1)
    facts: dict[str, Any] = {
        "n_images": len(views),
        "max_difference": float(difference.max()),
        "mean_difference": float(difference.mean()),
        "same_top_1": float((own == theirs).mean()),
    }
    if examples.truth is not None:
        facts["accuracy"] = float((own == examples.truth).mean())
        facts["accuracy_pytorch"] = float((theirs == examples.truth).mean())
    if is_exact and not facts["max_difference"] <= TOLERANCE:
        raise CaptuneError(
            f"The exported model's probabilities differ from PyTorch's by {facts['max_difference']:.2e}, expected at "
            f"most {TOLERANCE:.0e}. Nothing was written. Please report this, with the backbone and the tuner."
        )
    return facts


def _trace(module: nn.Module, card: OnnxCard) -> bytes:
    """Return a module as an ONNX model for batches of any size."""
    content: Any = BytesIO()
    try:
        with _quiet(), torch.inference_mode():
            # Tracing takes one second, torch.export ten, and tracing works with every supported version of torch.
            torch.onnx.export(
                module.cpu().eval(),
                (torch.zeros(2, 3, *card.preprocessing.shape),),
                content,
                dynamo=False,
                opset_version=OPSET,
                input_names=[PIXELS],
                output_names=[PROBABILITIES, EMBEDDINGS],
                dynamic_axes={name: {0: "images"} for name in (PIXELS, PROBABILITIES, EMBEDDINGS)},
            )
            return bytes(content.getvalue())
    except Exception as error:  # each unsupported operator has its own error class, and so have files above 2 GB
        reason = str(error).splitlines()[0][:300]
        raise InputError(
            f"The model {card.tuner!r} on {card.backbone!r} cannot be converted to ONNX: "
            f"{type(error).__name__}: {reason}. Use the run folder with captune predict or captune.load instead."
        ) from error


def _write_model(content: bytes, card: OnnxCard, target: Path, examples: Examples) -> str:
    """Check a traced model on examples, write it with its card, and return what was found."""
    facts = compare(OnnxClassifier(_with_card(content, card)).score_views, examples, card.precision == "float32")
    write_whole(target, _with_card(content, replace(card, check=facts)))
    known = " Accuracy {accuracy:.2%}, PyTorch {accuracy_pytorch:.2%}." if "accuracy" in facts else ""
    told = (
        "on {n_images} images, probabilities differ from PyTorch's by at most {max_difference:.1e} (mean "
        f"{{mean_difference:.1e}}), and {{same_top_1:.2%}} of the predictions agree.{known}"
    )
    return f"{card.precision}: {target.stat().st_size / 1e6:.1f} MB; {told.format(**facts)}"


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
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, _quiet():
            path = Path(folder) / "int8.onnx"
            quantize_dynamic(
                model,
                path,
                op_types_to_quantize=["MatMul"],
                per_channel=True,
                weight_type=QuantType.QUInt8,  # signed weights overflow on processors without VNNI
                nodes_to_exclude=products[-1:],  # the class vectors: few weights, and rounding them costs accuracy
            )
            return path.read_bytes()
    except OSError as error:
        raise CaptuneError(f"Temporary files cannot be written: {error.strerror or error}. Free space.") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings; its result is compared with PyTorch."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
