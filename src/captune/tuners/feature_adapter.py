"""A residual adapter on cached image embeddings and free class vectors: adapts in seconds without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, relu

from captune.backbones.base import Backbone
from captune.core.arrays import Floats
from captune.core.settings import Positive
from captune.data.vocabulary import Vocabulary
from captune.embeddings.embed import embed_classes
from captune.mixture.calibration import find_temperature
from captune.mixture.gaussian_mixture import MixtureFit
from captune.tuners.base import Tuner
from captune.tuners.gaussian import MixtureRule


class ResidualAdapter(nn.Module):
    """Adds the output of a small bottleneck to an embedding and normalizes the sum."""

    def __init__(self, embed_dim: int, width: int = 128, strength: float = 0.01, starts_neutral: bool = False) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(embed_dim, width), nn.Linear(width, embed_dim)
        self.strength = strength
        if starts_neutral:
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return adapted unit embeddings."""
        return normalize(embeddings + self.strength * self.up(relu(self.down(embeddings))), dim=-1)


@dataclass(frozen=True)
class FeatureAdapterSettings:
    """The size of the adapter.

    Attributes:
        width: Hidden units of the bottleneck.
        has_mixture: Whether the scores of a Gaussian mixture are added to the scaled cosines.
    """

    width: Positive = 128
    has_mixture: bool = False


class FeatureAdapter(Tuner, MixtureRule):
    """An adapter on the frozen backbone's embeddings, and class vectors that start from the texts."""

    Settings = FeatureAdapterSettings
    retired: ClassVar[Mapping[str, Any]] = {"start_share": 0.0}

    def __init__(
        self, backbone: Backbone, vocabulary: Vocabulary, settings: FeatureAdapterSettings | None = None
    ) -> None:
        super().__init__(backbone, vocabulary, settings)
        self.adapter = ResidualAdapter(backbone.embed_dim, self.settings.width, strength=1.0, starts_neutral=True)
        self.class_vectors = nn.Parameter(torch.from_numpy(embed_classes(backbone, vocabulary)))
        self.class_vectors.no_decay = True  # type: ignore[attr-defined] # only their direction matters
        if self.settings.has_mixture:
            self.add_rule(len(vocabulary), backbone.embed_dim)

    def refine(self, embeddings: Tensor) -> Tensor:
        """Return the adapted embeddings."""
        adapted: Tensor = self.adapter(embeddings)
        return adapted

    def class_embeddings(self) -> Tensor:
        """Return the normalized class vectors."""
        return normalize(self.class_vectors, dim=-1)

    def with_mixture(self, fit: MixtureFit) -> FeatureAdapter:
        """Return a student that starts from a fitted mixture: before training, it decides as the mixture does."""
        student = FeatureAdapter(self.backbone, self.vocabulary, replace(self.settings, has_mixture=True))
        student.load_state_dict(self.state_dict(), strict=False)
        student.set_mixture(fit)
        return student

    @torch.inference_mode()
    def calibrate(self, embeddings: Floats, confidence: float) -> None:
        """Set the temperature at which the mean confidence on embeddings `(images, width)` is the given one."""
        images = self.refine(torch.from_numpy(embeddings).to(self.weights.device))
        scores = (self.temperature * self.logits(images, self.class_embeddings())).cpu().numpy()
        self.temperature.fill_(find_temperature(scores, confidence))

    def logits(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the scaled cosines, and the mixture's linear scores with them, `(images, classes)`."""
        cosines = super().logits(images, classes)
        if not self.settings.has_mixture:
            return cosines
        with torch.autocast(images.device.type, enabled=False):
            # In place: with thousands of classes, new memory takes as long as the products.
            return cosines.add_(images.float() @ self.weights.T).add_(self.offsets).div_(self.temperature)
