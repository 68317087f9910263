"""A residual adapter on cached image embeddings and free class vectors: adapts in seconds without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import normalize, relu

from captune.backbones.base import Backbone
from captune.data.vocabulary import Vocabulary
from captune.scoring import embed_classes
from captune.tuners.base import Tuner


class ResidualAdapter(nn.Module):
    """Adds a small bottleneck's answer to an embedding and scales the sum to length one."""

    def __init__(self, embed_dim: int, width: int = 128, strength: float = 0.01, starts_neutral: bool = False) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(embed_dim, width), nn.Linear(width, embed_dim)
        self.strength = strength
        if starts_neutral:
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return adapted embeddings of length one."""
        return normalize(embeddings + self.strength * self.up(relu(self.down(embeddings))), dim=-1)


@dataclass(frozen=True)
class FeatureAdapterSettings:
    """The size of the adapter.

    Attributes:
        width: Units of the bottleneck.
    """

    width: Annotated[int, Ge(1)] = 128


class FeatureAdapter(Tuner):
    """The backbone is left alone; its embeddings pass an adapter, and class vectors start from the texts."""

    Settings: ClassVar[type[FeatureAdapterSettings]] = FeatureAdapterSettings

    def __init__(
        self, backbone: Backbone, vocabulary: Vocabulary, settings: FeatureAdapterSettings | None = None
    ) -> None:
        super().__init__(backbone, vocabulary, settings)
        self.adapter = ResidualAdapter(backbone.embed_dim, self.settings.width, strength=1.0, starts_neutral=True)
        self.class_vectors = nn.Parameter(torch.from_numpy(embed_classes(backbone, vocabulary)))
        self.class_vectors.no_decay = True  # type: ignore[attr-defined] # only their direction counts

    def refine(self, embeddings: Tensor) -> Tensor:
        """Return the adapted embeddings."""
        return self.adapter(embeddings)

    def class_embeddings(self) -> Tensor:
        """Return the class vectors, scaled to length one."""
        return normalize(self.class_vectors, dim=-1)
