"""The student and its loss as one module, so that gradients, ranks and checkpoints see one forward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from captune.core.arrays import Floats, Ints
from captune.training.feeds import Feed, Views
from captune.training.loop import StepResult
from captune.training.losses import margin_losses, masked_mean
from captune.tuners.base import Tuner
from captune.tuners.feature_adapter import ResidualAdapter


class LabeledViews(NamedTuple):
    """The inputs of a step with the labels of its reliable and given images, and what neighbors say of the others."""

    views: Views
    reliable_labels: Tensor
    given_labels: Tensor
    consensus: Tensor | None


class ConfusionObjective(nn.Module):
    """CAP's loss (Section 3.3): reliable, given and self-made labels under one margin.

    The main adapter learns from reliable and given labels and makes the labels of unlabeled images; the pseudo
    adapter learns from those. All three adapters are used in training only.
    """

    def __init__(
        self, tuner: Tuner, feed: Feed, allowed: Tensor, tau: float, adapter_width: int, independent_adapters: bool
    ) -> None:
        super().__init__()
        self.tuner, self.tau = tuner, tau
        width = tuner.backbone.embed_dim
        self.text_adapter = ResidualAdapter(width, adapter_width)
        self.main_adapter = ResidualAdapter(width, adapter_width)
        self.pseudo_adapter = ResidualAdapter(width, adapter_width) if independent_adapters else self.main_adapter
        self.margin: Tensor | None = None
        object.__setattr__(self, "feed", feed)
        self.register_buffer("allowed", allowed, persistent=False)

    feed: Feed
    allowed: Tensor

    def forward(self, batch: LabeledViews) -> StepResult:
        """Return the loss of a step: L = L_PL + L_UL (+ L_L) (Eqs. 12 and 14)."""
        views, feed = batch.views, self.feed
        classes = self.text_adapter(self.tuner.class_embeddings())
        with torch.no_grad():  # the labels of the unlabeled come from their weak view and need no graph
            weak = self.logits(self.main_adapter(feed.embed(self.tuner, views.weak)), classes)
            confidence, made = self.restrict_to(weak).max(dim=-1)
            accepted = confidence >= self.tau
            if batch.consensus is not None:
                accepted &= made == batch.consensus
            made = made[accepted]
        # One forward for all that is learned from; a strong view whose label is not accepted is not even encoded.
        parts = [views.reliable, views.given, views.strong[accepted]]
        learned = feed.embed(self.tuner, torch.cat([part for part in parts if len(part)] or parts[:1]))
        reliable, given, strong = torch.split(learned, [len(part) for part in parts])

        main = self.logits(self.main_adapter(torch.cat([reliable, given])), classes)
        supervised = margin_losses(main, torch.cat([batch.reliable_labels, batch.given_labels]), self.margin)
        loss = masked_mean(supervised[: len(reliable)]) + masked_mean(supervised[len(reliable) :])
        pseudo = self.logits(self.pseudo_adapter(strong), classes)
        loss = loss + masked_mean(margin_losses(pseudo, made, self.margin))
        by_class = torch.bincount(made, minlength=len(classes))
        return StepResult(loss, {"accepted": by_class, "offered": torch.tensor(len(views.strong), device=loss.device)})

    def logits(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return scaled cosines `(images, classes)` (Eqs. 8 and 10)."""
        return self.tuner.logits(images, classes)

    def restrict_to(self, logits: Tensor) -> Tensor:
        """Return probabilities over the classes that a pseudo-label may name; the others get zero."""
        return logits.masked_fill(~self.allowed, -torch.inf).softmax(dim=-1)

    @torch.inference_mode()
    def look(self, positions: Ints) -> tuple[Floats, Floats, Floats]:
        """Return the main adapter's embeddings and probabilities of unlabeled images, and the class embeddings."""
        images = self.main_adapter(self.feed.look(self.tuner, positions))
        classes = self.text_adapter(self.tuner.class_embeddings())
        probabilities = self.restrict_to(self.logits(images, classes))
        return images.cpu().numpy(), probabilities.cpu().numpy(), classes.cpu().numpy()
