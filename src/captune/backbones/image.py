"""Image models of transformers without texts, such as DINOv2, as second encoders beside a backbone."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone, Side, Tokens, Tower, local_path
from captune.backbones.hf import SUPPORTED, HuggingFace, load_config
from captune.core.errors import ModelError
from captune.data.views import Preprocessing


class ImageModel(HuggingFace):
    """A frozen image encoder; its feature is what the model pools, or its first token."""

    source: ClassVar[str] = "image"
    supported: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[tuple[str, ...]] = ("facebook/dinov2-small", "facebook/dinov2-base", "facebook/dinov2-large")

    def __init__(self, identifier: str, model: Any, preprocessing: Preprocessing, tokenizer: None = None) -> None:
        self.identifier, self.model, self.preprocessing, self.logit_scale = identifier, model, preprocessing, 1.0
        self.freeze()
        side, made_for = preprocessing.image_size, getattr(model.config, "image_size", None)
        interpolates = "interpolate_pos_encoding" in signature(model.forward).parameters and side != made_for

        def encode(pixels: Tensor, mask: Tensor | None) -> Tensor:
            found = model(pixels, **({"interpolate_pos_encoding": True} if interpolates else {}))
            pooled = getattr(found, "pooler_output", None)
            return (found.last_hidden_state[:, 0] if pooled is None else pooled).flatten(1)

        with torch.inference_mode():
            self.embed_dim = int(encode(torch.zeros(1, 3, side, side, device=self.device), None).shape[1])
        self.image_tower = Tower(encode, self.embed_dim)

    @classmethod
    def prompt_towers(cls, name: str) -> frozenset[Side]:
        """Return no tower."""
        return frozenset()

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Raise an error: there is no text encoder."""
        raise ModelError(
            f"{self.identifier!r} has no text encoder. Use it as second_encoder, beside a backbone such as a CLIP."
        )


def wrap_image_encoder(model: Any, processor: Any) -> Backbone:
    """Return a second encoder around an image model of transformers in memory, which is frozen in place."""
    if isinstance(model, Backbone):
        return model
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise ModelError(f"Cannot use {type(model).__name__}: expected an image model of transformers.")
    return ImageModel.around(model, processor)


def second_id(identifier: str) -> str:
    """Return the id of a second encoder: `hf:` also names image models without texts."""
    source, _, name = identifier.partition(":")
    if source == "hf" and load_config(local_path(name), (), ImageModel.examples).model_type not in SUPPORTED:
        return f"image:{name}"
    return identifier
