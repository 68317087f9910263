"""The loss that UPL, FPL, GRIP and CPL share: pseudo-labels or candidates, and given labels, weighted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from captune.core import distributed
from captune.training.feeds import Feed, Views
from captune.training.loop import StepResult
from captune.training.losses import margin_cross_entropy, partial_label_loss
from captune.tuners.base import Tuner


class PseudoLabeledViews(NamedTuple):
    """The inputs of a step: weak or strong views of pseudo-labeled images, and given images with their labels.

    `targets` is `(pseudo-labeled images, classes)`: how much each class counts as the label of an image.
    """

    views: Views
    targets: Tensor
    given_labels: Tensor


class PseudoLabelObjective(nn.Module):
    """A student with the weighted sum of its losses on pseudo-labeled and given images."""

    def __init__(self, tuner: Tuner, feed: Feed, pseudo_weight: float = 1.0, given_weight: float = 1.0) -> None:
        super().__init__()
        self.tuner = tuner
        self.pseudo_weight, self.given_weight = pseudo_weight, given_weight
        object.__setattr__(self, "feed", feed)

    feed: Feed

    def forward(self, batch: PseudoLabeledViews) -> StepResult:
        """Return the loss of a step; with one class as target, the loss of a pseudo-label is its cross-entropy."""
        views, classes = batch.views, self.tuner.class_embeddings()
        parts = [views.reliable, views.strong, views.given]
        images = self.feed.embed(self.tuner, torch.cat([part for part in parts if len(part)] or parts[:1]))
        logits = self.tuner.logits(images, classes)
        n_pseudo = len(batch.targets)
        pseudo = partial_label_loss(logits[:n_pseudo], batch.targets)
        given = margin_cross_entropy(logits[n_pseudo:], batch.given_labels)
        loss = self.pseudo_weight * pseudo + self.given_weight * given
        return StepResult(loss, {"steps": torch.ones((), device=loss.device) / distributed.size()})
