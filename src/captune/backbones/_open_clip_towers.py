"""The seams to open_clip's towers: its vision and text transformers, and encoders that carry no prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from captune.backbones.base import TextTower, Tower
from captune.core.errors import ModelError


class OpenClipImageTower(Tower):
    """open_clip's vision transformer: a norm before the first layer, the class token (or a mean) is the feature."""

    def __init__(self, model: Any) -> None:
        self.model, self.layers = model, model.transformer.resblocks
        self.width = int(model.conv1.out_channels)

    def enter(self, inputs: Tensor) -> Tensor:
        """Return class and patch tokens with positions."""
        patches = self.model.conv1(inputs).flatten(2).transpose(1, 2)
        first = self.model.class_embedding.expand(patches.shape[0], 1, -1)
        return torch.cat([first, patches], dim=1) + self.model.positional_embedding

    def entry_norm(self, tokens: Tensor) -> Tensor:
        """Apply the norm before the first layer, where there is one."""
        return self.model.ln_pre(tokens)

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Every token sees every other."""
        return layer(tokens)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Pool, norm (in the model's order) and project; a mean takes in every token but the class token."""
        if self.model.final_ln_after_pool:
            return self.model.ln_post(self._pool(tokens)) @ self.model.proj
        return self._pool(self.model.ln_post(tokens)) @ self.model.proj

    def _pool(self, tokens: Tensor) -> Tensor:
        return tokens[:, 1:].mean(dim=1) if self.model.pool_type == "avg" else tokens[:, 0]


class OpenClipTextTower(TextTower):
    """open_clip's text transformer, which stands in the model itself or in a module of its own."""

    def __init__(self, model: Any, pooling: str, end_id: int) -> None:
        self.model, self.pooling, self.end_id = model, pooling, end_id
        self.layers, self.width = model.transformer.resblocks, int(model.token_embedding.embedding_dim)
        self.is_causal = model.attn_mask is not None
        self.padding_matters = not self.is_causal
        self.prompt_start = 1 if pooling in ("argmax", "eos") else 0

    def enter(self, inputs: Tensor) -> Tensor:
        """Return words with positions."""
        return self.word_embedding(inputs) + self.position_embedding(0, int(inputs.shape[1]))

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """A causal token sees only what stands before it, another sees all, padding too."""
        if not self.is_causal:
            return layer(tokens)
        length = tokens.shape[1]
        hidden = tokens.new_full((length, length), float("-inf")).triu(1)
        return layer(tokens, attn_mask=hidden)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Project the normed token that stands for the text."""
        chosen = tokens[torch.arange(len(tokens), device=tokens.device), self.end_position(inputs)]
        feature, projection = self.model.ln_final(chosen), self.model.text_projection
        if projection is None:
            return feature
        return projection(feature) if isinstance(projection, nn.Module) else feature @ projection

    def end_position(self, ids: Tensor) -> Tensor:
        """Return the position of the token that stands for each text."""
        if self.pooling == "argmax":
            return ids.argmax(dim=-1)
        if self.pooling == "eos":
            return (ids == self.end_id).int().argmax(dim=-1)
        return ids.new_full((len(ids),), 0 if self.pooling == "first" else ids.shape[1] - 1)

    def needed_length(self, ids: Tensor) -> int:
        """Return how many tokens make a difference: causal text may be cut after the longest end token."""
        return int(self.end_position(ids).max()) + 1 if self.is_causal else int(ids.shape[1])

    def word_embedding(self, ids: Tensor) -> Tensor:
        """Return word embeddings without positions."""
        return self.model.token_embedding(ids)

    def position_embedding(self, start: int, stop: int) -> Tensor:
        """Return the position embeddings."""
        return self.model.positional_embedding[start:stop]


class SealedTower(TextTower):
    """An encoder without a seam for prompts (a ResNet, a timm or Hugging Face tower): it encodes as it is."""

    def __init__(self, encode: Callable[[Tensor], Tensor], width: int) -> None:
        self.encode, self.width, self.layers = encode, width, ()

    def enter(self, inputs: Tensor) -> Tensor:
        """Return the features at once."""
        return self.encode(inputs)

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Return the tokens; there are no layers to pass."""
        return tokens

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Return the features."""
        return tokens

    def word_embedding(self, ids: Tensor) -> Tensor:
        """Refuse: words cannot be replaced here."""
        raise ModelError("This text encoder cannot carry prompts. Choose a tuner that works on embeddings.")

    def position_embedding(self, start: int, stop: int) -> Tensor:
        """Refuse: words cannot be replaced here."""
        raise ModelError("This text encoder cannot carry prompts. Choose a tuner that works on embeddings.")
