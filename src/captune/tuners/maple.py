"""MaPLe: prompts in several layers of both towers, the visual ones projected from the textual ones."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone
from captune.core.settings import Positive
from captune.data.vocabulary import Vocabulary
from captune.tuners._prompted_texts import PromptedTexts, put_prompts
from captune.tuners.base import Tuner

START_WORDS = "a photo of a"


@dataclass(frozen=True)
class MapleSettings:
    """The size of the prompts.

    Attributes:
        n_prompts: Learned vectors in each layer.
        depth: Number of layers with their own prompts, at most the depth of the shallower tower.
    """

    n_prompts: Positive = 2
    depth: Positive = 8


class Maple(Tuner):
    """Coupled prompts on a frozen transformer pair."""

    Settings = MapleSettings
    edits_images = True
    prompted_towers = frozenset(("image", "text"))

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, settings: MapleSettings | None = None) -> None:
        super().__init__(backbone, vocabulary, settings)
        text, image = backbone.text_tower, backbone.image_tower
        self.n_prompts = self.settings.n_prompts
        self.depth = min(self.settings.depth, text.depth, image.depth)
        # The word embeddings of a common template, repeated if there are more prompts than words.
        ids = backbone.tokenize([START_WORDS]).ids[0, text.prompt_start :]
        chosen = ids[torch.arange(self.n_prompts, device=ids.device) % len(START_WORDS.split())]
        first = text.words(chosen).detach().clone()
        deeper = [torch.empty_like(first).normal_(std=0.02) for _ in range(self.depth - 1)]
        self.prompts = nn.ParameterList([nn.Parameter(vectors) for vectors in (first, *deeper)])
        # As in the authors' code of MaPLe, all deeper projections start as copies of one.
        own, shared = (nn.Linear(text.width, image.width) for _ in range(2))
        self.projections = nn.ModuleList([own, *(deepcopy(shared) for _ in range(self.depth - 1))])
        texts = [[_rest(text, self.n_prompts) for text in vocabulary.texts(c)] for c in range(len(vocabulary))]
        self.texts = PromptedTexts.tokenize(backbone, texts, self.n_prompts)

    def class_embeddings(self) -> Tensor:
        """Return the embeddings of the class texts, with the prompts in place of their first words."""
        tower = self.backbone.text_tower
        return self.texts.encode(
            lambda depth, tokens: (
                put_prompts(tower, depth, tokens, self.prompts[depth]) if depth < self.depth else tokens
            )
        )

    def encode(self, pixels: Tensor) -> Tensor:
        """Return image embeddings with the projected prompts among the patches."""
        return self.backbone.encode_image(pixels, self._edit_image)

    def _edit_image(self, depth: int, tokens: Tensor) -> Tensor:
        if depth >= self.depth:
            return tokens  # past the last prompt layer, prompts continue as ordinary tokens
        vectors = self.projections[depth](self.prompts[depth]).expand(tokens.shape[0], -1, -1)
        own = tokens if depth == 0 else tokens[:, : -self.n_prompts]
        return torch.cat([own, vectors], dim=1)


def _rest(sentence: str, n_prompts: int) -> str:
    """Return a sentence without the words that the prompts replace, the first ones of `a photo of a ...`."""
    words = sentence.split()
    common = START_WORDS.split()[:n_prompts]
    return " ".join(words[len(common) :] if words[: len(common)] == common else words)
