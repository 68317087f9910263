"""The frozen image-text encoder pair, and how prompts enter it: forward pre-hooks replace the tokens of its layers."""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from captune.core import registry
from captune.core.errors import ModelError, damaged_model
from captune.core.files import is_folder
from captune.core.settings import DEFAULT_BACKBONE
from captune.data.views import Preprocessing

MOST_LOG_SCALE = 80.0
"""Logarithm of the largest logit scale: beyond, single precision overflows."""
Side: TypeAlias = Literal["image", "text"]
Edit: TypeAlias = Callable[[int, Tensor], Tensor]
"""`edit(depth, tokens)` returns the tokens `(batch, length, width)` that enter the layer at this depth.

It may replace tokens; among the tokens of images, it may also append some at the end and remove them again. Depth 0 is
after the position embedding and before the norm at the entry, if there is one.
"""


def _refuse(*inputs: object) -> NoReturn:
    raise ModelError("This encoder takes no prompts. Choose a tuner of embeddings, or a backbone of transformers.")


@dataclass(frozen=True)
class Tower:
    """An encoder as its library computes features `(batch, features)` from inputs and their mask."""

    encode: Callable[[Tensor, Tensor | None], Tensor]
    width: int
    """Length of a token."""
    entries: Sequence[nn.Module] = ()
    """Where prompts enter at each depth: the norm before the first layer or this layer, then all other layers. Empty
    for encoders without such layers, such as a ResNet."""

    @property
    def depth(self) -> int:
        """Return the number of layers that prompts can enter."""
        return len(self.entries)

    def __call__(self, inputs: Tensor, mask: Tensor | None = None, edit: Edit | None = None) -> Tensor:
        """Return features, with the edit applied to the tokens that enter each layer."""
        if edit is None:
            return self.encode(inputs, mask)
        if not self.entries:
            _refuse()
        with _edited(self.entries, edit):
            return self.encode(inputs, mask)


@dataclass(frozen=True)
class TextTower(Tower):
    """An encoder of token ids; prompts replace placeholder words, so positions and masks stay correct."""

    words: Callable[[Tensor], Tensor] = _refuse
    positions: Callable[[], Tensor] = _refuse
    """Returns what is added to words, `(length, width)`."""
    prompt_start: int = 1
    """Position of the first word: after the start token, if there is one."""
    padding_matters: bool = True
    """Whether padding after a text changes its embedding."""


@contextmanager
def _edited(entries: Sequence[nn.Module], edit: Edit) -> Iterator[None]:
    """Edit what enters these modules, in this thread: another one may be using the same encoder."""
    thread = get_ident()

    def hook_of(depth: int) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (edit(depth, inputs[0]), *inputs[1:]) if get_ident() == thread else inputs

        return hook

    handles = [module.register_forward_pre_hook(hook_of(depth)) for depth, module in enumerate(entries)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Tokens:
    """Tokenized texts: ids and a mask that is False for padding, both `(texts, length)`."""

    ids: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def chunks(self, size: int) -> list[Tokens]:
        """Return all texts in order, at most `size` per chunk."""
        return [Tokens(self.ids[i : i + size], self.mask[i : i + size]) for i in range(0, len(self), size)] or [self]

    def shortened(self, chosen: Tensor) -> Tokens:
        """Return the chosen texts, cut to the longest of them."""
        mask = self.mask[chosen]
        length = int(mask.sum(dim=1).max())
        return Tokens(self.ids[chosen, :length], mask[:, :length])


class Backbone(ABC):
    """A frozen image-text encoder pair whose embeddings have length one."""

    examples: ClassVar[tuple[str, ...]] = ()
    """Well-known names of this source, suggested when an id is wrong."""

    identifier: str
    model: Any
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
    def check(cls, name: str) -> None:
        """Raise a clear error for a name that cannot be loaded; without loading it, if it is large."""
        cls.load(name)

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
        """Return the id for a saved classifier, in which a local folder is absolute."""
        source, _, name = self.identifier.partition(":")
        is_local = bool(name) and not self.identifier.startswith(registry.IN_MEMORY) and is_folder(local_path(name))
        return f"{source}:{Path(local_path(name)).resolve()}" if is_local else self.identifier

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a saved classifier must contain because the id does not lead to them."""
        return {}

    def prompted_sides(self) -> frozenset[Side]:
        """Return which towers of this model support prompts."""
        sides: tuple[Side, Side] = ("image", "text")
        return frozenset(side for side in sides if getattr(getattr(self, f"{side}_tower", None), "depth", 0))

    def parts(self) -> Sequence[nn.Module | Backbone]:
        """Return what contains the weights: modules, or other backbones."""
        return (self.model,)

    def modules(self) -> Iterator[nn.Module]:
        """Return the modules that contain the weights."""
        for part in self.parts():
            yield from part.modules() if isinstance(part, Backbone) else (part,)

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize texts, padded no further than the longest one needs."""

    def image_features(self, pixels: Tensor, edit: Edit | None = None) -> Tensor:
        """Return the projected image features before normalization, `(images, embed_dim)`."""
        return self.image_tower(pixels, edit=edit)

    def text_features(self, tokens: Tokens, edit: Edit | None = None) -> Tensor:
        """Return the projected text features before normalization, `(texts, embed_dim)`."""
        return self.text_tower(tokens.ids, tokens.mask, edit)

    def encode_image(self, pixels: Tensor, edit: Edit | None = None) -> Tensor:
        """Return image embeddings of length one, `(images, embed_dim)`."""
        return normalize(self.image_features(pixels, edit).float(), dim=-1)

    def encode_text(self, tokens: Tokens, edit: Edit | None = None) -> Tensor:
        """Return text embeddings of length one, `(texts, embed_dim)`."""
        return self.encode_text_parts(tokens.chunks(self.texts_at_once), edit)

    def encode_text_parts(self, parts: Sequence[Tokens], edit: Edit | None = None) -> Tensor:
        """Return the embeddings of texts in parts that may differ in length, `(texts, embed_dim)`."""

        def encode(part: Tokens, edit: Edit | None) -> Tensor:
            return normalize(self.text_features(part, edit).float(), dim=-1)

        if is_grad_enabled() and sum(len(part) for part in parts) > self.texts_at_once:
            # Activations are kept for one part at a time; the others are recomputed when gradients need them.
            return torch.cat([checkpoint(encode, part, edit, use_reentrant=False) for part in parts])
        return torch.cat([encode(part, edit) for part in parts])

    def freeze(self) -> None:
        """Put the model, which must be in single precision, in evaluation mode and disable gradients."""
        for module in self.modules():
            if any(parameter.dtype != torch.float32 for parameter in module.parameters()):
                raise ModelError("The model is not in single precision. Convert it first: model.float()")
            module.eval().requires_grad_(False)

    def to(self, device: torch.device) -> Backbone:
        """Move the weights to a device."""
        for part in self.parts():
            part.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        part = self.parts()[0]
        return part.device if isinstance(part, Backbone) else next(part.parameters()).device

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


def local_path(name: str) -> str:
    """Expand `~`, which the shell does not do after `source:`."""
    return os.path.expanduser(name)  # noqa: PTH111 (without a home, it leaves the name as it is)


def scale_of(parameter: float, identifier: str) -> float:
    """Return the logit scale, the exponential of CLIP's parameter, which is 4.6 in most models."""
    scale = math.exp(parameter) if parameter < MOST_LOG_SCALE else math.inf
    if not math.isfinite(scale):
        raise damaged_model(f"The logit scale of {identifier!r} is exp({parameter}), expected a finite number.")
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
