"""A Gaussian mixture next to the class texts, estimated from all images at once; nothing is trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone
from captune.data.vocabulary import Vocabulary
from captune.mixture.gaussian_mixture import MixtureFit
from captune.tuners.base import NoSettings
from captune.tuners.frozen import Frozen


class MixtureRule(nn.Module):
    """Buffers for the linear rule of a mixture, which are saved with the classifier."""

    weights: Tensor
    offsets: Tensor
    temperature: Tensor

    def add_rule(self, n_classes: int, width: int) -> None:
        """Add the rule that changes nothing."""
        self.register_buffer("weights", torch.zeros(n_classes, width))
        self.register_buffer("offsets", torch.zeros(n_classes))
        self.register_buffer("temperature", torch.ones(()))

    def set_mixture(self, fit: MixtureFit) -> None:
        """Copy the rule of a fitted mixture."""
        for name in ("weights", "offsets", "temperature"):
            getattr(self, name).copy_(torch.as_tensor(getattr(fit, name)))


class Gaussian(Frozen, MixtureRule):
    """Class texts and a mixture decide together; without a mixture, it is zero-shot classification."""

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, settings: NoSettings | None = None) -> None:
        super().__init__(backbone, vocabulary, settings)
        self.add_rule(len(vocabulary), backbone.embed_dim)

    def logits(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the scores of texts and mixture, `(images, classes)`; linear in the images."""
        rule = self.weights + self.backbone.logit_scale * classes
        return (images @ rule.T + self.offsets) / self.temperature
