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
from captune.backbones.hf import entries_of, image_tower
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
        self.image_tower = image_tower(vision, self._encode_image, self.projections["visual"])
        words = text.embeddings
        self.text_tower = TextTower(
            self._encode_text,
            (text, self.projections["text"]),
            int(text.config.hidden_size),
            [words.LayerNorm, *entries_of(text)[1:]],
            words=words.word_embeddings,
            # what BERT adds to words of the first segment
            positions=lambda: words.position_embeddings.weight + words.token_type_embeddings.weight[0],
            padding_matters=False,
        )
        self.layout = layout
        part = layout.vision
        self.preprocessing = Preprocessing(part.image_size, part.image_size, part.resample, part.mean, part.std)
        self.embed_dim = layout.embed_dim
        self.longest_text = min(layout.text.max_length, int(text.config.max_position_embeddings))
        self.logit_scale = scale_of(weights["logit_scale"].item(), self.identifier)
        self.freeze()

    def _encode_image(self, pixels: Tensor, mask: Tensor | None) -> Tensor:
        """Project the class token; positions are interpolated to the size of the image."""
        is_vit = self.vision.config.model_type == "vit"
        states = self.vision(pixels, **({"interpolate_pos_encoding": True} if is_vit else {})).last_hidden_state
        return self._project(states[:, 0], "visual")

    def _encode_text(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Project the mean over the real tokens of the text, or its first token."""
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        tower, length = self.text_tower, ids.shape[1]
        tokens = self.text.embeddings.LayerNorm(tower.words(ids) + tower.positions()[:length])
        visible = mask[:, None, None, :].expand(-1, 1, length, -1)
        states = self.text.encoder(tokens, attention_mask=visible).last_hidden_state
        feature = states[:, 0]
        if self.layout.text.pooling == "mean":
            weights = mask.to(states.dtype)
            feature = (states * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        return self._project(feature, "text")

    def _project(self, feature: Tensor, side: str) -> Tensor:
        projection = self.projections[side]
        return projection(normalize(feature, dim=-1) if self.layout.normalize_before_projection else feature)

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
