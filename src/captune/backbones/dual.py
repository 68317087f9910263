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
from captune.core.errors import ModelError
from captune.core.files import is_file
from captune.data.views import Preprocessing, Resample

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

    def __init__(self, name: str, folder: Path, layout: Layout, vision: Any, text: Any, tokenizer: Any) -> None:
        self.identifier, self.vision, self.text, self.tokenizer = f"dual:{name}", vision, text, tokenizer
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
        self.embed_dim = layout.embed_dim
        self.longest_text = min(layout.text.max_length, int(text.config.max_position_embeddings))
        self.logit_scale = math.exp(weights["logit_scale"].item())
        self.freeze()

    @classmethod
    def load(cls, name: str) -> DualEncoder:
        """Load the towers and projections in a folder."""
        from transformers import AutoModel

        folder, layout = _read_layout(name)
        configs = _tower_configs(folder, layout)
        tokenizer = library.load_tokenizer(str(folder / layout.text.folder), int(configs["text"].vocab_size))
        towers = {
            # A pooler that the files do not hold would be made up at random, and the fingerprint with it.
            side: library.load_model(
                AutoModel,
                str(folder / part.folder),
                **({} if configs[side].model_type == "dinov2" else {"add_pooling_layer": False}),
            )
            for side, part in (("vision", layout.vision), ("text", layout.text))
        }
        return cls(name, folder, layout, towers["vision"], towers["text"], tokenizer)

    @classmethod
    def check(cls, name: str) -> None:
        """Read only the JSON files, so that a wrong folder is found before anything else."""
        folder, layout = _read_layout(name)
        _tower_configs(folder, layout)

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
    folder = Path(library.local_path(name))
    file = folder / "dual_encoder.json"
    if not name or not is_file(file):
        hint = f" The folder holds one model: load it as hf:{name}" if is_file(folder / "config.json") else ""
        raise ModelError(
            f"No dual encoder at {name!r}: expected a folder with {file.name}, as in dual:path/to/folder.{hint}"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        version = content.get("version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise ModelError(f"{str(file)!r} has version {version}, expected at most {VERSION}. Upgrade captune.")
        layout = TypeAdapter(Layout).validate_python(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{str(file)!r} is not valid JSON: {error}. Correct the file.") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'content'}: {e['msg']}" for e in error.errors())
        raise ModelError(f"{str(file)!r} does not describe a dual encoder: {problems}. Correct the file.") from error
    inside = folder.resolve()
    for part in (layout.vision.folder, layout.text.folder, layout.projection):
        if not (folder / part).resolve().is_relative_to(inside):
            raise ModelError(f"{str(file)!r} names {part!r}, which leads outside the folder. Put it inside.")
    return folder, layout


def _tower_configs(folder: Path, layout: Layout) -> dict[str, Any]:
    configs = {}
    for side, part, supported in (
        ("vision", layout.vision, ("vit", "dinov2")),
        ("text", layout.text, ("bert",)),
    ):
        path = folder / part.folder
        if not (path / "config.json").is_file():
            raise ModelError(
                f"No {side} tower at {str(path)!r}: expected a folder with config.json and model.safetensors. "
                "Complete the folder or correct dual_encoder.json."
            )
        configs[side] = library.load_config(str(path), supported)
    patch = int(configs["vision"].patch_size)
    if layout.vision.image_size < patch:
        raise ModelError(
            f"vision.image_size in {str(folder)!r} is {layout.vision.image_size}, expected at least {patch}, one patch."
        )
    return configs


def _projection_weights(path: Path) -> dict[str, torch.Tensor]:
    try:
        weights = load_file(str(path))
    except Exception as error:  # safetensors has an error class of its own, missing files another
        raise ModelError(f"The projections {str(path)!r} cannot be read: {error}. Save them again.") from error
    scale = weights.get("logit_scale")
    if scale is None or scale.numel() != 1:
        found = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in sorted(weights.items()))
        raise ModelError(f"The projections {str(path)!r} hold no single number 'logit_scale', found {found}.")
    return weights


def _linear(weights: dict[str, torch.Tensor], name: str, width: int, embed_dim: int, folder: Path) -> nn.Linear:
    weight, bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
    for part, tensor, expected in (("weight", weight, (embed_dim, width)), ("bias", bias, (embed_dim,))):
        shape = None if tensor is None else tuple(tensor.shape)
        if shape != expected and not (part == "bias" and tensor is None):
            raise ModelError(
                f"{name}.{part} in {str(folder)!r} has shape {shape}, expected {expected} from the towers and "
                "embed_dim. Save the projections again."
            )
    assert weight is not None  # its shape was right
    linear = nn.Linear(width, embed_dim, bias=bias is not None)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear
