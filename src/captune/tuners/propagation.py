"""Scores of neighbors in a graph of images and class texts; nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from captune.backbones.base import Backbone
from captune.core.arrays import Floats
from captune.core.settings import NonNegative, NonNegativeFloat, Positive
from captune.data.vocabulary import Vocabulary
from captune.tuners.frozen import Frozen

SAME_IMAGE = 1.0 - 1e-5
"""Cosine from which an image counts as one of the graph."""
SMALLEST_SCORE = 1e-12
NUMBERS_AT_ONCE = 1 << 25


@dataclass(frozen=True)
class PropagationSettings:
    """The graph that scores come from.

    Attributes:
        n_images: Number of images in the graph; without any, it is zero-shot classification.
        neighbors: Number of nearest images, and of nearest class texts, whose scores an image receives.
        gamma: Power of the cosine similarities that weight them.
    """

    n_images: NonNegative = 0
    neighbors: Positive = 5
    gamma: NonNegativeFloat = 5.0


class Propagation(Frozen):
    """An image of the graph has its own scores, a new one those of its neighbors; probabilities are their shares."""

    Settings = PropagationSettings
    images: Tensor
    scores: Tensor

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, settings: PropagationSettings | None = None) -> None:
        super().__init__(backbone, vocabulary, settings)
        n_images, n_classes = self.settings.n_images, len(vocabulary)
        self.register_buffer("images", torch.zeros(n_images, backbone.embed_dim))
        self.register_buffer("scores", torch.zeros(n_classes + n_images, n_classes))

    def set_nodes(self, images: Floats, scores: Floats) -> None:
        """Copy embeddings `(images, width)` and scores `(classes + images, classes)`, texts first."""
        self.images.copy_(torch.from_numpy(images))
        self.scores.copy_(torch.from_numpy(scores))

    def logits(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the logarithm of the scores, `(images, classes)`."""
        if not len(self.images):
            return super().logits(images, classes)
        most = max(1, NUMBERS_AT_ONCE // (len(self.images) + 2 * self.settings.neighbors * len(classes)))
        if len(images) <= most:  # also when the rule is traced for an export
            return self._receive(images, classes)
        return torch.cat([self._receive(part, classes) for part in torch.split(images, most)])

    def _receive(self, images: Tensor, classes: Tensor) -> Tensor:
        near = (images @ self.images.T).topk(min(self.settings.neighbors, len(self.images)), dim=1)
        near_texts = (images @ classes.T).topk(min(self.settings.neighbors, len(classes)), dim=1)
        nodes = torch.cat([near.indices + len(classes), near_texts.indices], dim=1)
        weights = torch.cat([near.values, near_texts.values], dim=1).clamp_min(0.0) ** self.settings.gamma
        received = (weights[:, None] @ self.scores[nodes])[:, 0]
        own = self.scores[near.indices[:, 0] + len(classes)]
        scores = torch.where(near.values[:, :1] >= SAME_IMAGE, own, received)
        return scores.clamp_min(SMALLEST_SCORE).log()
