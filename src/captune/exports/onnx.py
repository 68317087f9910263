"""The classifier as one ONNX file, checked against PyTorch on real images; --int8 adds a smaller one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from captune.core.errors import CaptuneError
from captune.core.files import write_whole
from captune.exports.base import ExportFormat, ExportSettings, FinishedRun


class OnnxModel(ExportFormat):
    """Image encoder with prompts and adapters, and class matrix: pixels in, probabilities and embeddings out."""

    target: ClassVar[str] = "model.onnx"
    takes: ClassVar[frozenset[str]] = frozenset({"images", "labels", "n_checked", "int8"})

    def write(self, run: FinishedRun, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Trace, check and write; nothing is written that answers differently from PyTorch."""
        from captune.exports import _checking as checking
        from captune.exports import _onnx_graph as graph
        from captune.results.onnx_classifier import OnnxClassifier

        graph.require_onnx()
        examples = checking.gather_examples(run, settings)
        card, content = graph.describe(run.classifier), graph.trace(run.classifier)
        facts = checking.compare(OnnxClassifier(graph.with_card(content, card)), examples)
        if not facts["max_difference"] <= checking.TOLERANCE:
            raise CaptuneError(
                f"The exported model's probabilities differ from PyTorch's by {facts['max_difference']:.2e} on "
                f"{facts['n_images']} images, expected at most {checking.TOLERANCE:.0e}. Nothing was written. "
                "Please report this with the backbone and the tuner of the run."
            )
        write_whole(target, graph.with_card(content, replace(card, check=facts)))
        sentences = [_sentence("float32", target, facts)]
        if settings.int8:
            small, small_card = graph.quantize(content, card)
            small_facts = checking.compare(OnnxClassifier(graph.with_card(small, small_card)), examples)
            small_target = int8_path(target)
            write_whole(small_target, graph.with_card(small, replace(small_card, check=small_facts)))
            sentences.append(_sentence("int8", small_target, small_facts))
        return sentences


def int8_path(target: Path) -> Path:
    """Return where the smaller model goes: beside the other, as name.int8.onnx."""
    return target.with_name(f"{target.stem}.int8{target.suffix}")


def _sentence(precision: str, path: Path, facts: dict[str, Any]) -> str:
    said = (
        f"{precision}: {path.stat().st_size / 1e6:.1f} MB; on {facts['n_images']} images the probabilities differ from "
        f"PyTorch's by at most {facts['max_difference']:.1e} (mean {facts['mean_difference']:.1e}), the same class for "
        f"{facts['same_top_1']:.2%}; one image takes {facts['seconds_per_image'] * 1000:.0f} ms."
    )
    if "accuracy" in facts:
        said += f" Accuracy {facts['accuracy']:.2%}, PyTorch {facts['accuracy_pytorch']:.2%}."
    return said
