"""Class texts with room for prompts in front of them: how they are tokenized, read with prompts, and averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from captune.backbones.base import Backbone, TextTower, Tokens

PLACEHOLDER = "a"
"""A word that is one token in every tokenizer; prompts take its place."""


@dataclass(frozen=True)
class PromptedTexts:
    """The tokenized texts of all classes, one or more for each, with placeholders where prompts will be."""

    backbone: Backbone
    tokens: Tokens
    per_class: tuple[int, ...]

    @classmethod
    def tokenize(cls, backbone: Backbone, texts: Sequence[Sequence[str]], n_prompts: int) -> PromptedTexts:
        """Tokenize the texts of every class behind so many placeholders; each ends with a full stop."""
        room = f"{PLACEHOLDER} " * n_prompts
        sentences = [f"{room}{sentence.rstrip('.')}." for group in texts for sentence in group]
        return cls(backbone, backbone.tokenize(sentences), tuple(len(group) for group in texts))

    def encode(self, edit: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Return an embedding of length one for every class, the mean over its texts, `(classes, width)`."""
        embedded = self.backbone.encode_text(self.tokens, edit)
        if len(embedded) == len(self.per_class):
            return embedded
        means = [part.mean(0) for part in torch.split(embedded, list(self.per_class))]
        return normalize(torch.stack(means), dim=-1)


def put_prompts(tower: TextTower, depth: int, tokens: Tensor, prompts: Tensor) -> Tensor:
    """Return tokens `(texts, length, width)` with prompts `(prompts, width)` in the places of the first words."""
    start, stop = tower.prompt_start, tower.prompt_start + len(prompts)
    if depth == 0:  # later layers replace hidden states, which carry no position of their own
        prompts = prompts + tower.position_embedding(start, stop)
    return torch.cat([tokens[:, :start], prompts.expand(tokens.shape[0], -1, -1), tokens[:, stop:]], dim=1)


def longest_text(backbone: Backbone) -> int:
    """Return how many tokens the text tower takes, start and end included."""
    return int(backbone.tokenize([f"{PLACEHOLDER} " * 1000]).ids.shape[1])
