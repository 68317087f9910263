"""Two transformers towers (ViT or DINOv2, and BERT) joined by projections: a folder with dual_encoder.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from captune.backbones import _hub
from captune.backbones.base import Backbone, TextTower, Tokens, scale_of
from captune.backbones.hf import TransformersTower, run_layer
from captune.core.cards import read_json
from captune.core.errors import ModelError
from captune.core.files import is_file
from captune.core.settings import Positive
from captune.data.views import Preprocessing, Resample

FORMAT, VERSION = "captune-dual-encoder", 1


@dataclass(frozen=True)
class VisionPart:
    """The settings of the image tower."""

    folder: str
    image_size: Positive
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    pooling: Literal["cls"] = "cls"
    resample: Resample = "bicubic"


@dataclass(frozen=True)
class TextPart:
    """The settings of the text tower."""

    folder: str
    pooling: Literal["mean", "cls"] = "mean"
    max_length: Positive = 64


@dataclass(frozen=True)
class Layout:
    """The content of dual_encoder.json."""

    format: Literal["captune-dual-encoder"]
    version: int
    embed_dim: Positive
    vision: VisionPart
    text: TextPart
    projection: str = "projection.safetensors"
    normalize_before_projection: bool = True


class VitImageTower(TransformersTower):
    """The image tower of ViT and DINOv2: the normalized class token, projected."""

    def __init__(self, model: Any, projection: nn.Module, normalize_first: bool) -> None:
        super().__init__(model, projection)
        self.normalize_first = normalize_first
        self.options = {} if model.config.model_type == "dinov2" else {"interpolate_pos_encoding": True}

    def enter(self, inputs: Tensor) -> Tensor:
        """Return class and patch tokens with positions, interpolated to the size of the image."""
        return self.model.embeddings(inputs, **self.options)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Project the normalized class token."""
        feature = self.model.layernorm(tokens[:, 0])
        return self.projection(normalize(feature, dim=-1) if self.normalize_first else feature)


class BertTextTower(TransformersTower, TextTower):
    """The text tower of BERT: a norm before the first layer; the mean of real tokens, or the first, is the feature."""

    padding_matters = False

    def __init__(self, model: Any, projection: nn.Module, pooling: str, normalize_first: bool) -> None:
        super().__init__(model, projection)
        self.pooling, self.normalize_first = pooling, normalize_first

    def enter(self, inputs: Tensor) -> Tensor:
        """Return words with position and segment."""
        return self.word_embedding(inputs) + self.position_embedding(0, int(inputs.shape[1]))

    def entry_norm(self, tokens: Tensor) -> Tensor:
        """Apply BERT's norm of the embeddings."""
        return self.model.embeddings.LayerNorm(tokens)

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Apply a layer in which every token attends to the real tokens."""
        visible = None if mask is None else mask[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
        return run_layer(layer, tokens, visible)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Project the mean over the real tokens of the text, without appended prompts, or its first token."""
        feature = tokens[:, 0]
        if self.pooling == "mean":
            own = tokens[:, : inputs.shape[1]]
            weights = own.new_ones(own.shape[:2]) if mask is None else mask[:, : own.shape[1]].to(own.dtype)
            feature = (own * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        return self.projection(normalize(feature, dim=-1) if self.normalize_first else feature)

    def word_embedding(self, ids: Tensor) -> Tensor:
        """Return word embeddings without position and segment."""
        return self.model.embeddings.word_embeddings(ids)

    def position_embedding(self, start: int, stop: int) -> Tensor:
        """Return what BERT adds to words of the first segment at these positions."""
        embeddings = self.model.embeddings
        return embeddings.position_embeddings.weight[start:stop] + embeddings.token_type_embeddings.weight[0]


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
        self.logit_scale = scale_of(weights["logit_scale"].item(), self.identifier)
        self.freeze()

    @classmethod
    def load(cls, name: str) -> DualEncoder:
        """Load the towers and projections in a folder."""
        from transformers import AutoModel

        folder, layout = _read_layout(name)
        configs = _tower_configs(folder, layout)
        tokenizer = _hub.load_tokenizer(str(folder / layout.text.folder), int(configs["text"].vocab_size))
        towers = {
            # A pooler that is missing from the files would be initialized at random and change the fingerprint.
            side: _hub.load_model(
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

    @classmethod
    def files(cls, name: str) -> Sequence[Path]:
        """Return the files of both towers, the projections and dual_encoder.json."""
        try:
            folder, layout = _read_layout(name)
        except ModelError:
            return ()
        towers = [file for part in (layout.vision, layout.text) for file in _hub.files_of(str(folder / part.folder))]
        return [folder / "dual_encoder.json", folder / layout.projection, *towers]

    def portable_id(self) -> str:
        """Return the id with an absolute folder."""
        return _hub.with_absolute_folder(self.identifier)

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
    folder = Path(_hub.local_path(name))
    file = folder / "dual_encoder.json"
    if not name or not is_file(file):
        hint = f" The folder contains a single model: load it as hf:{name}" if is_file(folder / "config.json") else ""
        raise ModelError(
            f"No dual encoder at {name!r}: expected a folder with {file.name}, as in dual:path/to/folder.{hint}"
        )
    try:
        content = read_json(file)
        version = content.get("version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise ModelError(
                f"{str(file)!r} has version {version}, but this captune supports up to {VERSION}. Upgrade captune."
            )
        layout = TypeAdapter(Layout).validate_python(content)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'content'}: {e['msg']}" for e in error.errors())
        raise ModelError(f"{str(file)!r} is not a valid dual encoder: {problems}. Correct the file.") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{str(file)!r} is not valid JSON: {error}. Correct the file.") from error
    for part in (layout.vision.folder, layout.text.folder, layout.projection):
        if not (folder / part).resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{str(file)!r} refers to {part!r}, which is outside the folder. Move it inside.")
    return folder, layout


def _tower_configs(folder: Path, layout: Layout) -> dict[str, Any]:
    configs = {}
    for side, subfolder, supported in (
        ("vision", layout.vision.folder, ("vit", "dinov2")),
        ("text", layout.text.folder, ("bert",)),
    ):
        path = folder / subfolder
        if not (path / "config.json").is_file():
            raise ModelError(
                f"No {side} tower at {str(path)!r}: expected a folder with config.json and model.safetensors. "
                "Complete the folder or correct dual_encoder.json."
            )
        configs[side] = _hub.load_config(str(path), supported)
    patch = int(configs["vision"].patch_size)
    if layout.vision.image_size < patch:
        raise ModelError(
            f"vision.image_size in {str(folder)!r} is {layout.vision.image_size}, smaller than one patch ({patch})."
        )
    return configs


def _projection_weights(path: Path) -> dict[str, torch.Tensor]:
    try:
        weights = load_file(str(path))
    except Exception as error:  # safetensors and missing files raise unrelated errors
        raise ModelError(f"Cannot read the projections {str(path)!r}: {error}. Save them again.") from error
    scale = weights.get("logit_scale")
    if scale is None or scale.numel() != 1:
        found = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in sorted(weights.items()))
        raise ModelError(f"The projections {str(path)!r} must contain a scalar 'logit_scale', found {found}.")
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
    assert weight is not None  # its shape was checked
    linear = nn.Linear(width, embed_dim, bias=bias is not None)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear
