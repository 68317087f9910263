"""A Gaussian mixture anchored at the class texts, estimated from all images at once; nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from captune.backbones.base import Backbone
from captune.data.vocabulary import Vocabulary
from captune.labeling.gaussian_mixture import GaussianMixture
from captune.tuners.frozen import Frozen

NonNegativeFloat = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class GaussianSettings:
    """The weights of the decision.

    Attributes:
        text_weight: Weight of the class text.
        sharpness: Weight of the Gaussian log-density.
    """

    text_weight: NonNegativeFloat = 1.0
    sharpness: NonNegativeFloat = 1.0


class Gaussian(Frozen):
    """Class texts and a mixture decide together; without a mixture, it is zero-shot classification."""

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

    def set_mixture(self, mixture: GaussianMixture) -> None:
        """Copy a mixture, which is then saved with the classifier."""
        for name in ("means", "variance", "log_shares"):
            getattr(self, name).copy_(torch.from_numpy(getattr(mixture, name)))

    def logits(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the weighted sum of scaled cosine and log-density, `(images, classes)`; linear in the images."""
        weights = self.settings.sharpness * self.means / self.variance
        offsets = self.log_shares - (weights * self.means).sum(dim=-1) / 2
        text_scale = self.settings.text_weight * self.backbone.logit_scale
        return images @ (weights + text_scale * classes).T + offsets
