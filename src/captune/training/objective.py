"""Objectives: a student and its loss as one module, so that gradients, processes and checkpoints see one forward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from captune.core import distributed
from captune.core.arrays import Floats, Ints
from captune.training.batch_sources import BatchSource, Views
from captune.training.loop import StepResult
from captune.training.losses import margin_cross_entropy, margin_losses, masked_mean, partial_label_loss
from captune.tuners.base import Tuner
from captune.tuners.feature_adapter import ResidualAdapter


class CapBatch(NamedTuple):
    """A step of CAP: views, labels of pseudo-labeled and labeled images, and the mixture's of the unlabeled ones."""

    views: Views
    pseudo_labels: Tensor
    labels: Tensor
    mixture_labels: Tensor | None


class ConfusionObjective(nn.Module):
    """CAP's loss (Section 3.3): pseudo-labeled, unlabeled and labeled images under one margin.

    The main adapter learns from pseudo-labeled and labeled images and labels the unlabeled images of a step; the
    pseudo adapter learns from those. All three adapters are used in training only.
    """

    def __init__(
        self,
        tuner: Tuner,
        source: BatchSource,
        allowed: Tensor,
        tau: float,
        independent_adapters: bool = True,
        adapter_width: int = 128,
    ) -> None:
        super().__init__()
        self.tuner, self.tau = tuner, tau
        width = tuner.backbone.embed_dim
        self.text_adapter = ResidualAdapter(width, adapter_width)
        self.main_adapter = ResidualAdapter(width, adapter_width)
        self.pseudo_adapter = ResidualAdapter(width, adapter_width) if independent_adapters else self.main_adapter
        self.margin: Tensor | None = None
        object.__setattr__(self, "source", source)
        self.register_buffer("allowed", allowed, persistent=False)

    source: BatchSource
    allowed: Tensor

    def forward(self, batch: CapBatch) -> StepResult:
        """Return the loss of a step: L = L_PL + L_UL (+ L_L) (Eqs. 12 and 14)."""
        views, source = batch.views, self.source
        classes = self.text_adapter(self.tuner.class_embeddings())
        with torch.no_grad():  # the labels of unlabeled images come from their weak views and need no gradient
            weak = self.logits(self.main_adapter(source.embed(self.tuner, views.weak)), classes)
            confidence, predicted = self.probabilities(weak).max(dim=-1)
            accepted = confidence >= self.tau
            if batch.mixture_labels is not None:
                accepted &= predicted == batch.mixture_labels
            predicted = predicted[accepted]
        # One forward for everything with gradients; a strong view without an accepted label is not even encoded.
        parts = [views.pseudo_labeled, views.labeled, views.strong[accepted]]
        learned = source.embed(self.tuner, torch.cat([part for part in parts if len(part)] or parts[:1]))
        pseudo_labeled, labeled, strong = torch.split(learned, [len(part) for part in parts])

        main = self.logits(self.main_adapter(torch.cat([pseudo_labeled, labeled])), classes)
        supervised = margin_losses(main, torch.cat([batch.pseudo_labels, batch.labels]), self.margin)
        loss = masked_mean(supervised[: len(pseudo_labeled)]) + masked_mean(supervised[len(pseudo_labeled) :])
        pseudo = self.logits(self.pseudo_adapter(strong), classes)
        loss = loss + masked_mean(margin_losses(pseudo, predicted, self.margin))
        by_class = torch.bincount(predicted, minlength=len(classes))
        return StepResult(loss, {"accepted": by_class, "offered": torch.tensor(len(views.strong), device=loss.device)})

    def logits(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return scaled cosines `(images, classes)` (Eqs. 8 and 10)."""
        return self.tuner.logits(images, classes)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return probabilities over the classes that a pseudo-label may have; the others are zero."""
        return logits.masked_fill(~self.allowed, -torch.inf).softmax(dim=-1)

    @torch.inference_mode()
    def embed(self, positions: Ints) -> tuple[Tensor, Tensor]:
        """Return the main adapter's embeddings of unlabeled images, and the class embeddings."""
        images = self.main_adapter(self.source.embed_unlabeled(self.tuner, positions))
        return images, self.text_adapter(self.tuner.class_embeddings())

    @torch.inference_mode()
    def predict(self, images: Tensor, classes: Tensor) -> Floats:
        """Return the probabilities of embedded images."""
        return self.probabilities(self.logits(images, classes)).cpu().numpy()


class PseudoLabelBatch(NamedTuple):
    """A step of UPL, FPL, GRIP or CPL: views, targets of the pseudo-labeled images, labels of the labeled ones.

    `targets` is `(pseudo-labeled images, classes)`, the weight of each class as the label of an image.
    """

    views: Views
    targets: Tensor
    labels: Tensor


class PseudoLabelObjective(nn.Module):
    """The loss of UPL, FPL, GRIP and CPL: a weighted sum over pseudo-labeled and labeled images."""

    def __init__(
        self, tuner: Tuner, source: BatchSource, pseudo_weight: float = 1.0, labeled_weight: float = 1.0
    ) -> None:
        super().__init__()
        self.tuner = tuner
        self.pseudo_weight, self.labeled_weight = pseudo_weight, labeled_weight
        object.__setattr__(self, "source", source)

    source: BatchSource

    def forward(self, batch: PseudoLabelBatch) -> StepResult:
        """Return the loss of a step; with a single target class, it is the cross-entropy of the pseudo-label."""
        views, classes = batch.views, self.tuner.class_embeddings()
        parts = [views.pseudo_labeled, views.strong, views.labeled]
        images = self.source.embed(self.tuner, torch.cat([part for part in parts if len(part)] or parts[:1]))
        logits = self.tuner.logits(images, classes)
        n_pseudo = len(batch.targets)
        pseudo = partial_label_loss(logits[:n_pseudo], batch.targets)
        labeled = margin_cross_entropy(logits[n_pseudo:], batch.labels)
        loss = self.pseudo_weight * pseudo + self.labeled_weight * labeled
        return StepResult(loss, {"steps": torch.ones((), device=loss.device) / distributed.size()})
