"""Nothing is trained: class texts, and Gaussians of the classes that were estimated from all images at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from captune.backbones.base import Backbone
from captune.data.vocabulary import Vocabulary
from captune.labeling.gaussians import ClassGaussians
from captune.tuners.frozen import Frozen

NonNegativeFloat = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class GaussianSettings:
    """What counts in the decision.

    Attributes:
        text_weight: How much the class text counts.
        sharpness: How much the log-density of the Gaussian counts.
    """

    text_weight: NonNegativeFloat = 1.0
    sharpness: NonNegativeFloat = 1.0


class Gaussian(Frozen):
    """Texts and saved statistics decide together; without statistics it is zero-shot."""

    Settings: ClassVar[type[GaussianSettings]] = GaussianSettings

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, settings: GaussianSettings | None = None) -> None:
        super().__init__(backbone, vocabulary, settings)
        n_classes, width = len(vocabulary), backbone.embed_dim
        self.register_buffer("means", torch.zeros(n_classes, width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("log_shares", torch.zeros(n_classes))

    means: Tensor
    variance: Tensor
    log_shares: Tensor

    def take(self, gaussians: ClassGaussians) -> None:
        """Take over statistics; they are saved with the classifier."""
        for name in ("means", "variance", "log_shares"):
            getattr(self, name).copy_(torch.from_numpy(getattr(gaussians, name)))

    def logits(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the weighted sum of scaled cosine and log-density, `(images, classes)`; linear in the images."""
        weights = self.settings.sharpness * self.means / self.variance
        offsets = self.log_shares - (weights * self.means).sum(dim=-1) / 2
        text_scale = self.settings.text_weight * self.backbone.logit_scale
        return images @ (weights + text_scale * classes).T + offsets
