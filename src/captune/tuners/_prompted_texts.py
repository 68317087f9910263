"""Class texts with learned prompts in front of them: tokenized, encoded and averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from captune.backbones.base import Backbone, TextTower, Tokens

PLACEHOLDER = "a"
"""A word that is one token in every tokenizer; prompts replace it."""

SMALLEST_PART = 24
"""Minimum number of texts that are encoded as a separate part; fewer are padded to the next longer ones."""


@dataclass(frozen=True)
class PromptedTexts:
    """The tokenized texts of all classes, one or more per class, with placeholders for prompts.

    Texts of similar length form a part, so that little padding is encoded; `order` restores the order of the classes.
    """

    backbone: Backbone
    parts: Sequence[Tokens]
    order: Tensor
    per_class: tuple[int, ...]

    @classmethod
    def tokenize(
        cls, backbone: Backbone, texts: Sequence[Sequence[str]], n_prompts: int, end: str = "."
    ) -> PromptedTexts:
        """Tokenize the texts of every class after `n_prompts` placeholders; each ends with `end`."""
        room = f"{PLACEHOLDER} " * n_prompts
        sentences = [f"{room}{sentence.rstrip('.')}{end}" for group in texts for sentence in group]
        tokens, per_class = backbone.tokenize(sentences), tuple(len(group) for group in texts)
        if backbone.text_tower.padding_matters:
            return cls(backbone, tokens.chunks(backbone.texts_at_once), torch.arange(len(tokens)), per_class)
        groups = _by_length(tokens.mask.sum(dim=1), backbone.texts_at_once)
        parts = [tokens.shortened(group) for group in groups]
        return cls(backbone, parts, torch.cat(groups).argsort(), per_class)

    def encode(self, edit: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Return a unit embedding of every class, the mean over its texts, `(classes, width)`."""
        embedded = self.backbone.encode_text_parts(self.parts, edit)[self.order]
        if len(embedded) == len(self.per_class):
            return embedded
        means = [part.mean(0) for part in torch.split(embedded, list(self.per_class))]
        return normalize(torch.stack(means), dim=-1)


def _by_length(lengths: Tensor, at_most: int) -> list[Tensor]:
    """Return the positions of texts in groups of similar length, shortest first, each group in ascending order."""
    order = lengths.argsort(stable=True)
    rising, cuts = lengths[order].tolist(), [0]
    for i in range(1, len(rising)):
        worth_it = min(i - cuts[-1], len(rising) - i) >= SMALLEST_PART and rising[i] > rising[i - 1]
        if worth_it or i - cuts[-1] == at_most:
            cuts.append(i)
    return [group.sort().values for group in order.tensor_split(cuts[1:])]


def put_prompts(tower: TextTower, depth: int, tokens: Tensor, prompts: Tensor) -> Tensor:
    """Return tokens `(texts, length, width)` with prompts `(prompts, width)` in place of the first words."""
    start, stop = tower.prompt_start, tower.prompt_start + len(prompts)
    if depth == 0:  # later layers replace hidden states, which have no position embedding
        prompts = prompts + tower.positions()[start:stop]
    return torch.cat([tokens[:, :start], prompts.expand(tokens.shape[0], -1, -1), tokens[:, stop:]], dim=1)
