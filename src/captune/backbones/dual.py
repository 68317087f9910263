"""Two transformers towers (ViT or DINOv2, and BERT) joined by projections: a folder with dual_encoder.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from captune.backbones.base import Backbone, TextTower, Tokens, Tower, local_path, scale_of
from captune.backbones.hf import entries_of, files_of, load_config, load_model, load_tokenizer
from captune.core.errors import ModelError, RunFolderError
from captune.core.files import build_card, read_card
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
        widths = {"visual": int(vision.config.hidden_size), "text": int(text.config.hidden_size)}
        self.projections, log_scale = _read_projections(folder / layout.projection, widths, layout.embed_dim)
        self.image_tower = Tower(self._encode_image, widths["visual"], entries_of(vision))
        words = text.embeddings
        self.text_tower = TextTower(
            self._encode_text,
            widths["text"],
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
        self.logit_scale = scale_of(log_scale, self.identifier)
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
        folder, layout = _read_layout(name)
        vision, text = _tower_configs(folder, layout)
        vision_folder, text_folder = str(folder / layout.vision.folder), str(folder / layout.text.folder)
        tokenizer = load_tokenizer(text_folder, int(text.vocab_size))
        models = load_model(vision, vision_folder), load_model(text, text_folder)
        return cls(name, folder, layout, *models, tokenizer)

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
        towers = [file for part in (layout.vision, layout.text) for file in files_of(str(folder / part.folder))]
        return [folder / "dual_encoder.json", folder / layout.projection, *towers]

    def parts(self) -> Sequence[nn.Module]:
        """Return both towers and the projections."""
        return self.vision, self.text, self.projections

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize, padded to the longest text."""
        encoded = self.tokenizer(
            list(texts), padding="longest", truncation=True, max_length=self.longest_text, return_tensors="pt"
        )
        return Tokens(encoded["input_ids"].to(self.device), encoded["attention_mask"].bool().to(self.device))


def _read_layout(name: str) -> tuple[Path, Layout]:
    folder = Path(local_path(name))
    file = folder / "dual_encoder.json"
    missing = f"No dual encoder at {name!r}: expected a folder with {file.name}, as in dual:path/to/folder."
    try:
        layout = build_card(Layout, read_card(file, FORMAT, VERSION, missing), str(file))
    except RunFolderError as error:
        raise ModelError(str(error)) from error
    for part in (layout.vision.folder, layout.text.folder, layout.projection):
        if not (folder / part).resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{str(file)!r} refers to {part!r}, which is outside the folder. Move it inside.")
    return folder, layout


def _tower_configs(folder: Path, layout: Layout) -> tuple[Any, Any]:
    vision = load_config(str(folder / layout.vision.folder), ("vit", "dinov2"))
    return vision, load_config(str(folder / layout.text.folder), ("bert",))


def _read_projections(path: Path, widths: dict[str, int], embed_dim: int) -> tuple[nn.ModuleDict, float]:
    """Return the projections from both towers' widths, and the logarithm of the logit scale."""
    try:
        weights = load_file(str(path))
        log_scale = weights["logit_scale"].item()
        has_bias = {side: f"{side}_projection.bias" in weights for side in widths}
        projections = nn.ModuleDict({side: nn.Linear(widths[side], embed_dim, has_bias[side]) for side in widths})
        parts = {
            name.replace("_projection.", "."): tensor for name, tensor in weights.items() if "_projection." in name
        }
        projections.load_state_dict(parts)
    except Exception as error:  # missing and damaged files, tensors and shapes raise unrelated errors
        raise ModelError(
            f"The projections {str(path)!r} do not fit: {error}. Expected 'logit_scale', visual_projection.weight and "
            f"text_projection.weight from the towers' widths {tuple(widths.values())} to embed_dim {embed_dim}."
        ) from error
    return projections, log_scale
