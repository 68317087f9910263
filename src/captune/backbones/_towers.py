"""The seams to transformers' towers: CLIP, SigLIP, SigLIP 2, ViT, DINOv2 and BERT."""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from captune.backbones.base import TextTower, Tower


def _run(layer: nn.Module, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Run a layer; in transformers 4 it returns a tuple, and CLIP's takes a second mask."""
    output = layer(tokens, mask, None) if _takes_two_masks(type(layer)) else layer(tokens, mask)  # type: ignore[arg-type]
    return output[0] if isinstance(output, tuple) else output


def _run_causal(layer: nn.Module, tokens: Tensor) -> Tensor:
    """Run a layer in which a token attends only to those before it."""
    if not _takes_two_masks(type(layer)):  # type: ignore[arg-type]
        return layer(tokens, None, is_causal=True)
    length = tokens.shape[1]
    mask = tokens.new_full((length, length), torch.finfo(tokens.dtype).min).triu(1)
    return layer(tokens, None, mask.expand(len(tokens), 1, length, length))[0]


@cache
def _takes_two_masks(layer: Any) -> bool:
    return "causal_attention_mask" in signature(layer.forward).parameters


class ClipImageTower(Tower):
    """The image tower of transformers' CLIP: a norm before the first layer, the class token is the feature."""

    def __init__(self, model: Any, projection: nn.Module) -> None:
        self.model, self.projection = model, projection
        self.width, self.layers = int(model.config.hidden_size), model.encoder.layers

    def enter(self, inputs: Tensor) -> Tensor:
        """Return class and patch tokens with positions."""
        return self.model.embeddings(inputs)

    def entry_norm(self, tokens: Tensor) -> Tensor:
        """Apply CLIP's norm before the first layer."""
        return self.model.pre_layrnorm(tokens)

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Every token sees every other."""
        return _run(layer, tokens)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Project the normed class token."""
        return self.projection(self.model.post_layernorm(tokens[:, 0]))


class SiglipImageTower(Tower):
    """The image tower of SigLIP and SigLIP 2: no class token, an attention head pools all tokens."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.width, self.layers = int(model.config.hidden_size), model.encoder.layers
        self.patches_are_inputs = isinstance(model.embeddings.patch_embedding, nn.Linear)

    def enter(self, inputs: Tensor) -> Tensor:
        """Return patch tokens with positions; SigLIP 2's flexible models take the patches themselves."""
        if not self.patches_are_inputs:
            return self.model.embeddings(inputs)
        images, channels, height, width = inputs.shape
        size = int(self.model.config.patch_size)
        grid = inputs.reshape(images, channels, height // size, size, width // size, size)
        patches = grid.permute(0, 2, 4, 3, 5, 1).reshape(images, -1, channels * size * size)
        shapes = torch.tensor([[height // size, width // size]]).expand(images, 2)
        return self.model.embeddings(patches, shapes)

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Every token sees every other."""
        return _run(layer, tokens)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Pool all tokens, prompts included, with the attention head."""
        return self.model.head(self.model.post_layernorm(tokens))


class ClipTextTower(TextTower):
    """The text tower of transformers' CLIP: causal, the end-of-text token is the feature."""

    padding_matters = False

    def __init__(self, model: Any, projection: nn.Module) -> None:
        self.model, self.projection = model, projection
        self.width, self.layers = int(model.config.hidden_size), model.encoder.layers

    def enter(self, inputs: Tensor) -> Tensor:
        """Return words with positions."""
        return self.model.embeddings(inputs)

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """A token sees only what stands before it, so padding after the end needs no mask."""
        return _run_causal(layer, tokens)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Project the normed end-of-text token."""
        end = self.end_position(inputs)
        chosen = tokens[torch.arange(len(tokens), device=tokens.device), end]
        return self.projection(self.model.final_layer_norm(chosen))

    def end_position(self, ids: Tensor) -> Tensor:
        """Return where each text ends; old checkpoints name a wrong end token, there it is the largest id."""
        eos = int(self.model.config.eos_token_id)
        return ids.argmax(dim=-1) if eos == 2 else (ids == eos).int().argmax(dim=-1)

    def word_embedding(self, ids: Tensor) -> Tensor:
        """Return word embeddings without positions."""
        return self.model.embeddings.token_embedding(ids)

    def position_embedding(self, start: int, stop: int) -> Tensor:
        """Return the position embeddings."""
        return self.model.embeddings.position_embedding.weight[start:stop]


class SiglipTextTower(ClipTextTower):
    """The text tower of SigLIP and SigLIP 2: every token sees all, the last one (often padding) is the feature."""

    prompt_start = 0
    padding_matters = True

    def __init__(self, model: Any) -> None:
        super().__init__(model, model.head)

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Padding is seen too: SigLIP was trained that way."""
        return _run(layer, tokens)

    def end_position(self, ids: Tensor) -> Tensor:
        """Return the last position of the unedited text."""
        return torch.full((len(ids),), ids.shape[1] - 1, device=ids.device)


class VitImageTower(Tower):
    """The image tower of transformers' ViT and DINOv2: the normed class token, projected."""

    def __init__(self, model: Any, projection: nn.Module, normalize_first: bool) -> None:
        self.model, self.projection, self.normalize_first = model, projection, normalize_first
        self.width = int(model.config.hidden_size)
        self.layers = model.encoder.layer if hasattr(model, "encoder") else model.layers
        self.interpolates = {} if model.config.model_type == "dinov2" else {"interpolate_pos_encoding": True}

    def enter(self, inputs: Tensor) -> Tensor:
        """Return class and patch tokens with positions, interpolated to the image's size."""
        return self.model.embeddings(inputs, **self.interpolates)

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Every token sees every other."""
        return _run(layer, tokens)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Project the normed class token."""
        feature = self.model.layernorm(tokens[:, 0])
        return self.projection(normalize(feature, dim=-1) if self.normalize_first else feature)


class BertTextTower(TextTower):
    """The text tower of the BERT family: a norm before the first layer, the mean of real tokens is the feature."""

    padding_matters = False

    def __init__(self, model: Any, projection: nn.Module, pooling: str, normalize_first: bool) -> None:
        self.model, self.projection = model, projection
        self.pooling, self.normalize_first = pooling, normalize_first
        self.width, self.layers = int(model.config.hidden_size), model.encoder.layer

    def enter(self, inputs: Tensor) -> Tensor:
        """Return words with position and segment."""
        return self.word_embedding(inputs) + self.position_embedding(0, int(inputs.shape[1]))

    def entry_norm(self, tokens: Tensor) -> Tensor:
        """Apply BERT's norm of the embeddings."""
        return self.model.embeddings.LayerNorm(tokens)

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Every token sees the real tokens."""
        visible = None if mask is None else mask[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
        return _run(layer, tokens, visible)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Project the mean over the text's own real tokens, or its first token."""
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
