"""VPT: vectors learned among the patches of every image, in the first layer or in all layers; texts stay fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone
from captune.core.settings import Positive
from captune.data.vocabulary import Vocabulary
from captune.embeddings.embed import embed_classes
from captune.tuners.base import Tuner


@dataclass(frozen=True)
class VisualPromptsSettings:
    """The size and place of the prompts.

    Attributes:
        n_prompts: Learned vectors among the patches.
        depth: `shallow` prompts are inserted before the first layer, `deep` ones anew in every layer.
    """

    n_prompts: Positive = 16
    depth: Literal["shallow", "deep"] = "shallow"


class VisualPrompts(Tuner):
    """Prompts in the image tower; each class is represented by its text embedding."""

    Settings: ClassVar[type[VisualPromptsSettings]] = VisualPromptsSettings
    edits_images: ClassVar[bool] = True
    prompted_towers: ClassVar[frozenset[str]] = frozenset(("image",))

    def __init__(
        self, backbone: Backbone, vocabulary: Vocabulary, settings: VisualPromptsSettings | None = None
    ) -> None:
        super().__init__(backbone, vocabulary, settings)
        tower = backbone.image_tower
        n_layers = 1 if self.settings.depth == "shallow" else tower.depth
        self.prompts = nn.Parameter(torch.empty(n_layers, self.settings.n_prompts, tower.width).normal_(std=0.02))
        # Computed from the vocabulary, so they need not be saved.
        self.register_buffer("classes", torch.from_numpy(embed_classes(backbone, vocabulary)), persistent=False)

    classes: Tensor

    def class_embeddings(self) -> Tensor:
        """Return the embeddings of the class texts."""
        return self.classes

    def encode(self, pixels: Tensor) -> Tensor:
        """Return image embeddings with the prompts among the patches."""
        return self.backbone.encode_image(pixels, self._edit)

    def _edit(self, depth: int, tokens: Tensor) -> Tensor:
        if depth >= len(self.prompts):
            return tokens  # shallow prompts continue as ordinary tokens
        own = tokens if depth == 0 else tokens[:, : -self.settings.n_prompts]
        return torch.cat([own, self.prompts[depth].expand(tokens.shape[0], -1, -1)], dim=1)
