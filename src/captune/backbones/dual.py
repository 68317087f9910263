"""Two Hugging Face towers (ViT or DINOv2, and BERT) joined by projections: a folder with dual_encoder.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load_file
from torch import nn

from captune.backbones import _transformers_io as library
from captune.backbones._towers import BertTextTower, VitImageTower
from captune.backbones.base import Backbone, Tokens
from captune.data.views import Preprocessing, Resample
from captune.errors import ModelError

FORMAT, VERSION = "captune-dual-encoder", 1
Positive = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class VisionPart:
    """The image tower: its folder, pooling and preprocessing."""

    folder: str
    image_size: Positive
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    pooling: Literal["cls"] = "cls"
    resample: Resample = "bicubic"


@dataclass(frozen=True)
class TextPart:
    """The text tower: its folder, pooling and longest text."""

    folder: str
    pooling: Literal["mean", "cls"] = "mean"
    max_length: Positive = 64


@dataclass(frozen=True)
class Layout:
    """What dual_encoder.json says."""

    format: Literal["captune-dual-encoder"]
    version: int
    embed_dim: Positive
    vision: VisionPart
    text: TextPart
    projection: str = "projection.safetensors"
    normalize_before_projection: bool = True


class DualEncoder(Backbone):
    """A ViT or DINOv2 image tower and a BERT text tower in one embedding space."""

    def __init__(self, folder: Path, layout: Layout, vision: Any, text: Any, tokenizer: Any) -> None:
        self.identifier, self.vision, self.text, self.tokenizer = f"dual:{folder}", vision, text, tokenizer
        weights = _projection_weights(folder / layout.projection)
        self.projections = nn.ModuleDict(
            {
                side: _linear(weights, f"{side}_projection", int(tower.config.hidden_size), layout.embed_dim, folder)
                for side, tower in (("visual", vision), ("text", text))
            }
        )
        first = layout.normalize_before_projection
        self.image_tower = VitImageTower(vision, self.projections["visual"], first)
        self.text_tower = BertTextTower(text, self.projections["text"], layout.text.pooling, first)
        part = layout.vision
        self.preprocessing = Preprocessing(part.image_size, part.image_size, part.resample, part.mean, part.std)
        self.embed_dim, self.longest_text = layout.embed_dim, layout.text.max_length
        self.logit_scale = math.exp(float(weights["logit_scale"]))
        self.freeze()

    @classmethod
    def load(cls, name: str) -> DualEncoder:
        """Load the towers and projections in a folder."""
        from transformers import AutoModel

        folder, layout = _read_layout(name)
        towers = []
        for part, supported in ((layout.vision, ("vit", "dinov2")), (layout.text, ("bert",))):
            path = str(folder / part.folder)
            library.load_config(path, supported)
            towers.append(library.load_model(AutoModel, path))
        tokenizer = library.load_tokenizer(str(folder / layout.text.folder))
        return cls(folder, layout, towers[0], towers[1], tokenizer)

    @classmethod
    def check(cls, name: str) -> None:
        """Read only dual_encoder.json, so that a wrong folder is found before anything else."""
        _read_layout(name)

    def modules(self) -> Iterator[nn.Module]:
        """Return both towers and the projections."""
        yield from (self.vision, self.text, self.projections)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize, padded to the longest text."""
        encoded = self.tokenizer(
            list(texts), padding="longest", truncation=True, max_length=self.longest_text, return_tensors="pt"
        )
        return Tokens(encoded["input_ids"].to(self.device), encoded["attention_mask"].bool().to(self.device))


def _read_layout(name: str) -> tuple[Path, Layout]:
    folder = Path(name)
    file = folder / "dual_encoder.json"
    if not name or not file.is_file():
        raise ModelError(f"No dual encoder at {name!r}: expected a folder with {file.name}, as in dual:path/to/folder.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("version", 0) > VERSION:
            raise ModelError(
                f"{str(file)!r} has version {content['version']}, this captune reads {VERSION}. Upgrade it."
            )
        layout = TypeAdapter(Layout).validate_python(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{str(file)!r} is not valid JSON: {error}.") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ModelError(f"{str(file)!r} does not describe a dual encoder: {problems}.") from error
    inside = folder.resolve()
    for part in (layout.vision.folder, layout.text.folder, layout.projection):
        if not (folder / part).resolve().is_relative_to(inside):
            raise ModelError(f"{str(file)!r} names {part!r}, which leads outside the folder.")
    return folder, layout


def _projection_weights(path: Path) -> dict[str, torch.Tensor]:
    try:
        weights = load_file(str(path))
    except Exception as error:  # safetensors has an error class of its own, missing files another
        raise ModelError(f"The projections {str(path)!r} cannot be read: {error}.") from error
    if "logit_scale" not in weights:
        raise ModelError(f"The projections {str(path)!r} hold no 'logit_scale', found {', '.join(sorted(weights))}.")
    return weights


def _linear(weights: dict[str, torch.Tensor], name: str, width: int, embed_dim: int, folder: Path) -> nn.Linear:
    weight, bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
    shape = None if weight is None else tuple(weight.shape)
    if weight is None or shape != (embed_dim, width):
        raise ModelError(f"{name}.weight in {str(folder)!r} has shape {shape}, expected {(embed_dim, width)}.")
    linear = nn.Linear(width, embed_dim, bias=bias is not None)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear
