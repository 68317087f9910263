"""MaPLe: prompts in both towers, layer by layer, where the visual ones are projections of the text ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from captune.backbones.base import Backbone
from captune.data.vocabulary import Vocabulary
from captune.tuners.base import Tuner

START_WORDS = "a photo of a"
PLACEHOLDER = "a"
"""A word that is one token in every tokenizer; prompts take its place."""


@dataclass(frozen=True)
class MapleSettings:
    """The size of the prompts.

    Attributes:
        n_prompts: Learned vectors in each layer.
        depth: Layers that have prompts of their own; cut to the shallower tower's depth.
    """

    n_prompts: Annotated[int, Ge(1)] = 2
    depth: Annotated[int, Ge(1)] = 8


class Maple(Tuner):
    """Coupled prompts on a frozen transformer pair."""

    Settings: ClassVar[type[MapleSettings]] = MapleSettings
    edits_images: ClassVar[bool] = True
    prompted_towers: ClassVar[frozenset[str]] = frozenset(("image", "text"))

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, settings: MapleSettings | None = None) -> None:
        super().__init__(backbone, vocabulary, settings)
        text, image = backbone.text_tower, backbone.image_tower
        self.n_prompts = self.settings.n_prompts
        self.depth = min(self.settings.depth, text.depth, image.depth)
        first = _start_vectors(backbone, self.n_prompts)
        deeper = [torch.empty_like(first).normal_(std=0.02) for _ in range(self.depth - 1)]
        self.prompts = nn.ParameterList([nn.Parameter(vectors) for vectors in (first, *deeper)])
        self.projections = nn.ModuleList([nn.Linear(text.width, image.width) for _ in range(self.depth)])
        sentences = [vocabulary.texts(class_id) for class_id in range(len(vocabulary))]
        self.sentences_per_class = [len(group) for group in sentences]
        self.tokens = backbone.tokenize([_with_room(s, self.n_prompts) for group in sentences for s in group])

    def class_embeddings(self) -> Tensor:
        """Return the class texts' embeddings, read with the prompts in place of their first words."""
        embedded = self.backbone.encode_text(self.tokens, self._edit_text)
        if len(embedded) == len(self.sentences_per_class):
            return embedded
        means = [part.mean(0) for part in torch.split(embedded, self.sentences_per_class)]
        return nn.functional.normalize(torch.stack(means), dim=-1)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return image embeddings with the projected prompts among the patches."""
        return self.backbone.encode_image(pixels, self._edit_image)

    def _edit_text(self, depth: int, tokens: Tensor) -> Tensor:
        if depth >= self.depth:
            return tokens
        tower = self.backbone.text_tower
        start, stop = tower.prompt_start, tower.prompt_start + self.n_prompts
        vectors = self.prompts[depth]
        if depth == 0:  # later layers replace hidden states, which carry no position of their own
            vectors = vectors + tower.position_embedding(start, stop)
        inserted = vectors.expand(len(tokens), -1, -1)
        return torch.cat([tokens[:, :start], inserted, tokens[:, stop:]], dim=1)

    def _edit_image(self, depth: int, tokens: Tensor) -> Tensor:
        if depth >= self.depth:
            return tokens  # past the last prompt layer they flow on as ordinary tokens
        vectors = self.projections[depth](self.prompts[depth]).expand(len(tokens), -1, -1)
        own = tokens if depth == 0 else tokens[:, : -self.n_prompts]
        return torch.cat([own, vectors], dim=1)


def _start_vectors(backbone: Backbone, n_prompts: int) -> Tensor:
    """The first words of a common template, repeated where more prompts are asked for than it has words."""
    tower = backbone.text_tower
    ids = backbone.tokenize([START_WORDS]).ids[0, tower.prompt_start :]
    n_words = len(START_WORDS.split())
    chosen = ids[torch.arange(n_prompts, device=ids.device) % n_words]
    return tower.word_embedding(chosen).detach().clone()


def _with_room(sentence: str, n_prompts: int) -> str:
    """Put placeholders where the prompts will be: they stand for the first words of `a photo of a ...`."""
    words = sentence.split()
    common = START_WORDS.split()[:n_prompts]
    rest = words[len(common) :] if words[: len(common)] == common else words
    ended = " ".join(rest).rstrip(".") + "."
    return " ".join([*[PLACEHOLDER] * n_prompts, ended])
