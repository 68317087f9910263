"""The frozen image-text encoder pair, and the hook through which prompts enter it."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from captune.core import registry
from captune.core.errors import ModelError
from captune.core.settings import DEFAULT_BACKBONE
from captune.data.views import Preprocessing

MOST_LOG_SCALE = 80.0
"""Logarithm of the largest logit scale: beyond, single precision overflows."""
Side: TypeAlias = Literal["image", "text"]
Edit: TypeAlias = Callable[[int, Tensor], Tensor]
"""`edit(depth, tokens)` returns the tokens `(batch, length, width)` that enter the layer at this depth.

It may append tokens at the end, replace tokens, or remove tokens it appended. Depth 0 is after the position
embedding and before the entry norm.
"""


@dataclass(frozen=True)
class Tokens:
    """Tokenized texts: ids and a mask that is False for padding, both `(texts, length)`."""

    ids: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def slice(self, start: int, stop: int) -> Tokens:
        """Return some of the texts."""
        return Tokens(self.ids[start:stop], self.mask[start:stop])

    def chunks(self, size: int) -> list[Tokens]:
        """Return all texts in order, at most `size` per chunk."""
        return [self.slice(i, i + size) for i in range(0, len(self), size)] or [self]

    def shortened(self, chosen: Tensor) -> Tokens:
        """Return the chosen texts, cut to the longest of them."""
        mask = self.mask[chosen]
        length = int(mask.sum(dim=1).max())
        return Tokens(self.ids[chosen, :length], mask[:, :length])


class Tower(ABC):
    """One transformer in the form captune needs; subclasses adapt the models of a library."""

    width: int
    layers: Sequence[nn.Module]
    """The layers that prompts can enter; empty for encoders without such layers, such as a ResNet."""

    @abstractmethod
    def enter(self, inputs: Tensor) -> Tensor:
        """Return the tokens `(batch, length, width)` with positions, before the entry norm."""

    def entry_norm(self, tokens: Tensor) -> Tensor:
        """Return the tokens as the first layer expects them."""
        return tokens

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Apply one layer to the tokens."""
        return layer(tokens)

    @abstractmethod
    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Pool and project the tokens of the last layer to features `(batch, features)`."""

    @property
    def depth(self) -> int:
        """Return the number of layers."""
        return len(self.layers)


class TextTower(Tower):
    """A tower over token ids; prompts replace placeholder words, so positions and masks stay correct."""

    prompt_start: int = 1
    """Position of the first word: after the start token, if there is one."""

    padding_matters: bool = True
    """Whether padding after a text changes its embedding."""

    def word_embedding(self, ids: Tensor) -> Tensor:
        """Return the embeddings of token ids without their positions, `(..., width)`."""
        raise _no_prompts(self)

    def position_embedding(self, start: int, stop: int) -> Tensor:
        """Return what the tower adds to words at these positions, `(stop - start, width)`."""
        raise _no_prompts(self)


def run_tower(tower: Tower, inputs: Tensor, mask: Tensor | None, edit: Edit | None) -> Tensor:
    """Run a tower, calling the edit before every layer; this is the only loop over layers."""
    if edit is not None and not tower.layers:
        raise _no_prompts(tower)
    tokens = tower.enter(inputs)
    for depth, layer in enumerate(tower.layers):
        if edit is not None:
            tokens = edit(depth, tokens)
            mask = _fit_mask(mask, int(tokens.shape[1]))
        if depth == 0:
            tokens = tower.entry_norm(tokens)
        tokens = tower.pass_layer(layer, tokens, mask)
    return tower.leave(tokens, inputs, mask)


def _no_prompts(tower: Tower) -> ModelError:
    return ModelError(
        f"The {type(tower).__name__} of this backbone does not support prompts. Choose a tuner that works on "
        "embeddings, or a backbone with transformer towers."
    )


def _fit_mask(mask: Tensor | None, length: int) -> Tensor | None:
    """Extend the mask for appended tokens, which are visible, or shorten it after they are removed."""
    if mask is None or mask.shape[1] == length:
        return mask
    if mask.shape[1] > length:
        return mask[:, :length]
    appended = mask.new_ones((mask.shape[0], length - mask.shape[1]))
    return torch.cat([mask, appended], dim=1)


class Backbone(ABC):
    """A frozen image-text encoder pair whose embeddings have length one."""

    examples: ClassVar[tuple[str, ...]] = ()
    """Well-known names of this source, suggested when an id is wrong."""

    identifier: str
    image_tower: Tower
    text_tower: TextTower
    preprocessing: Preprocessing
    embed_dim: int
    logit_scale: float
    has_image_encoder: bool = True
    texts_at_once: int = 1024
    """Texts encoded at once; larger sets are encoded in chunks and, in training, recomputed for the gradients."""

    @classmethod
    @abstractmethod
    def load(cls, name: str) -> Backbone:
        """Load the model called `name` from this source, frozen and in fp32."""

    @classmethod
    @abstractmethod
    def check(cls, name: str) -> None:
        """Raise a clear error for a name that cannot be loaded, before anything heavy happens."""

    @classmethod
    def files(cls, name: str) -> Sequence[Path]:
        """Return all files that the model called `name` is made from; empty if that is not known."""
        return ()

    @classmethod
    def prompt_towers(cls, name: str) -> frozenset[Side]:
        """Return which towers of the model called `name` support prompts, without loading its weights."""
        return frozenset(("image", "text"))

    @classmethod
    def restore(cls, name: str, names: Sequence[str], tensors: Mapping[str, Tensor]) -> Backbone:
        """Load the model of a saved classifier, with its class names and what `state` returned."""
        return cls.load(name)

    def portable_id(self) -> str:
        """Return the id for a saved classifier, in which a local path is absolute."""
        return self.identifier

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a saved classifier must contain because the id does not lead to them."""
        return {}

    def prompted_sides(self) -> frozenset[Side]:
        """Return which towers of this model support prompts."""
        towers: dict[Side, Any] = {
            "image": getattr(self, "image_tower", None),
            "text": getattr(self, "text_tower", None),
        }
        return frozenset(side for side, tower in towers.items() if getattr(tower, "layers", ()))

    @abstractmethod
    def modules(self) -> Iterator[nn.Module]:
        """Return the modules that contain the weights."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize texts, padded no further than the longest one needs."""

    def image_features(self, pixels: Tensor, edit: Edit | None = None) -> Tensor:
        """Return the projected image features before normalization, `(images, embed_dim)`."""
        return run_tower(self.image_tower, pixels, None, edit)

    def text_features(self, tokens: Tokens, edit: Edit | None = None) -> Tensor:
        """Return the projected text features before normalization, `(texts, embed_dim)`."""
        return run_tower(self.text_tower, tokens.ids, tokens.mask, edit)

    def encode_image(self, pixels: Tensor, edit: Edit | None = None) -> Tensor:
        """Return image embeddings of length one, `(images, embed_dim)`."""
        return normalize(self.image_features(pixels, edit).float(), dim=-1)

    def encode_text(self, tokens: Tokens, edit: Edit | None = None) -> Tensor:
        """Return text embeddings of length one, `(texts, embed_dim)`."""
        return self.encode_text_parts(tokens.chunks(self.texts_at_once), edit)

    def encode_text_parts(self, parts: Sequence[Tokens], edit: Edit | None = None) -> Tensor:
        """Return the embeddings of texts in parts that may differ in length, `(texts, embed_dim)`."""
        encode = self._encode_text_part
        if is_grad_enabled() and sum(len(part) for part in parts) > self.texts_at_once:
            # Activations are kept for one part at a time; the others are recomputed when gradients need them.
            encode = partial(checkpoint, encode, use_reentrant=False)
        return torch.cat([encode(part, edit) for part in parts])

    def _encode_text_part(self, tokens: Tokens, edit: Edit | None) -> Tensor:
        return normalize(self.text_features(tokens, edit).float(), dim=-1)

    def freeze(self) -> None:
        """Put the model in evaluation mode and disable gradients of its weights."""
        for module in self.modules():
            module.eval().requires_grad_(False)

    def to(self, device: torch.device) -> Backbone:
        """Move the weights to a device."""
        for module in self.modules():
            module.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return next(parameter.device for module in self.modules() for parameter in module.parameters())

    def fingerprint(self) -> str:
        """Return a digest of all weights, by which caches and saved classifiers identify the model."""
        return fingerprint_of(self.modules())


PLUGIN_BASE = Backbone


def fingerprint_of(modules: Iterable[nn.Module]) -> str:
    """Return a digest of the weights of modules."""
    digest = hashlib.blake2b(digest_size=16)
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def scale_of(parameter: float, identifier: str) -> float:
    """Return the logit scale, the exponential of CLIP's parameter, which is 4.6 in most models."""
    scale = math.exp(parameter) if parameter < MOST_LOG_SCALE else math.inf
    if not math.isfinite(scale):
        raise ModelError(
            f"The logit scale of {identifier!r} is exp({parameter}), expected a finite number. Its weights are "
            "damaged: download or save the model again."
        )
    return scale


def load_backbone(identifier: str) -> Backbone:
    """Load a backbone by its `source:name` id."""
    source, name = registry.split_id("backbones", identifier, DEFAULT_BACKBONE)
    backbone: Backbone = registry.load("backbones", source).load(name)
    return backbone


def wrap(model: Any, processor: Any = None) -> Backbone:
    """Return a backbone around a CLIP or SigLIP model in memory, which is frozen in place.

    `processor` is the processor of a transformers model, or the tokenizer of an open_clip model.
    """
    if isinstance(model, Backbone):
        return model
    if any(parameter.dtype != torch.float32 for parameter in getattr(model, "parameters", tuple)()):
        raise ModelError("The model is not in single precision. Convert it first: model.float()")
    if hasattr(model, "config") and hasattr(model, "vision_model"):
        from captune.backbones.hf import HuggingFace

        return HuggingFace.around(model, processor)
    if hasattr(model, "visual") and hasattr(model, "encode_text"):
        from captune.backbones.open_clip import OpenClip

        return OpenClip.around(model, processor)
    raise ModelError(
        f"Cannot use {type(model).__name__} as a backbone: expected a CLIP, SigLIP or SigLIP 2 model of transformers, "
        "or an open_clip model."
    )
