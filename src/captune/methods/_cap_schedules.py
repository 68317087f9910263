"""The training schedules of CAP: how D_PL grows, and the margin of each epoch.

`CapSchedule` follows the paper; `ReleasedGrowth` and `MixtureSchedule` let D_PL grow in other ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from captune.concepts.confusion import (
    ConfusionMargin,
    class_prototypes,
    class_similarity,
    confident_counts,
    confusion_margin,
)
from captune.core.arrays import Ints
from captune.core.wording import option
from captune.data.task import AdaptationTask
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.labeling.selection import add_confident, released_size, rotate, top_k_per_class
from captune.methods.base import Context, read_labels
from captune.mixture.gaussian_mixture import MixtureFit
from captune.training.batch_sources import Request, draw_batches
from captune.training.checkpoint import add_prefix
from captune.training.loop import Schedule
from captune.training.objective import CapBatch, ConfusionObjective

if TYPE_CHECKING:
    from captune.methods.cap import CapSettings


class CapSchedule(Schedule):
    """The epochs of CAP: D_PL grows every few epochs, and every epoch has its own margin."""

    def __init__(
        self,
        task: AdaptationTask,
        objective: ConfusionObjective,
        pseudo_labels: PseudoLabels,
        mixture_labels: Ints | None,
        n_images: int,
        context: Context,
        settings: CapSettings,
    ) -> None:
        self.task, self.objective, self.n_images = task, objective, n_images
        self.context, self.settings = context, settings
        self.pseudo_labels = pseudo_labels  # D_PL
        self.mixture_labels = mixture_labels  # of all images; the student must agree
        self.accepted = np.zeros(len(task.vocabulary), dtype=np.int64)

    def begin_epoch(self, epoch: int) -> None:
        """Grow D_PL every few epochs (Appendix B) and compute the margin of the epoch (Section 3.2)."""
        if epoch and self.grows_in(epoch):
            self.context.history.append((epoch, self.pseudo_labels))
            self.pseudo_labels = self.grow(epoch)
        if epoch and self.settings.margin:  # the first epoch warms up without a margin
            margin = self.margin()
            self.objective.margin = torch.from_numpy(margin.matrix).to(self.context.runtime.device)

    def grows_in(self, epoch: int) -> bool:
        """Return whether D_PL grows before an epoch."""
        return epoch % self.settings.grow_every == 0

    def grow(self, epoch: int) -> PseudoLabels:
        """Return D_PL with the most confident new images of each class added."""
        settings, targets = self.settings, self.task.target_classes
        _, probabilities, _ = self.objective.predict(np.arange(self.n_images))
        n_new = max(1, int(self.n_images * settings.grow_every / (settings.epochs * len(targets))))
        return add_confident(self.pseudo_labels, probabilities, n_new, targets, epoch)

    def margin(self) -> ConfusionMargin:
        """Return the margin from the similarity of the classes and their confident predictions (Eqs. 2 to 7)."""
        settings, labels = self.settings, self.pseudo_labels
        images, probabilities, classes = self.objective.predict(labels.image_index)
        return confusion_margin(
            class_similarity(class_prototypes(images, labels.labels, classes), classes),
            self.accepted if settings.count_on == "accepted" else confident_counts(probabilities, settings.tau),
            margin=settings.margin_scale,
            logit_scale=self.objective.tuner.backbone.logit_scale if settings.scale_margin else None,
            tendency=settings.tendency or "paper",
            labeled=self.task.seen_classes,
        )

    def draw(self, epoch: int) -> list[Request]:
        """Draw the images of every step of an epoch, which depend on seed, epoch and D_PL only."""
        settings, labels = self.settings, self.pseudo_labels
        generator = np.random.default_rng([self.context.runtime.seed, epoch])
        drawn = [
            draw_batches(generator, n_items, settings.iterations, settings.train_batch)
            for n_items in (len(labels), len(self.objective.source.labels), self.n_images)
        ]
        return [
            Request(labels.image_index[pseudo_labeled], labeled, unlabeled)
            for pseudo_labeled, labeled, unlabeled in zip(*drawn, strict=True)
        ]

    def batches(self, epoch: int, first_step: int) -> Iterator[CapBatch]:
        """Yield the steps of an epoch: views of D_PL, labeled and unlabeled images, with their labels."""
        source, device = self.objective.source, self.context.runtime.device
        label_of = np.full(self.n_images, -1, dtype=np.int64)
        label_of[self.pseudo_labels.image_index] = self.pseudo_labels.labels
        for views in source.views(self.draw(epoch), epoch, first_step):
            pseudo_labeled, labeled, unlabeled = views.request
            mixture_labels = None if self.mixture_labels is None else self.mixture_labels[unlabeled]
            yield CapBatch(
                views,
                torch.from_numpy(label_of[pseudo_labeled]).to(device),
                torch.from_numpy(source.labels[labeled]).to(device),
                None if mixture_labels is None else torch.from_numpy(mixture_labels).to(device),
            )

    def end_epoch(self, epoch: int, sums: Mapping[str, Tensor]) -> None:
        """Record the epoch with the number of accepted pseudo-labels per class, and warn if they collapse."""
        self.accepted = sums["accepted"].cpu().numpy()
        margin = self.objective.margin
        self.context.record(
            step="epoch",
            epoch=epoch + 1,
            loss=round(float(sums["loss"]) / self.settings.iterations, 6),
            accepted_share=round(float(self.accepted.sum()) / max(1, int(sums["offered"])), 4),
            accepted=self.accepted.tolist(),
            pseudo_labeled=self.pseudo_labels.counts().tolist(),
            largest_margin=round(float(margin.max()), 4) if margin is not None else 0.0,
            mean_margin=round(mean_of_pairs(margin), 4) if margin is not None else 0.0,
        )
        shares = [facts["accepted_share"] for facts in self.context.rounds if facts["step"] == "epoch"]
        if has_collapsed(shares):
            self.context.say(
                f"In epoch {epoch + 1} only {shares[-1]:.1%} of the pseudo-labels were accepted, compared to "
                f"{max(shares):.0%} at best: the training is collapsing. Stop it, and start a new run with "
                f"{option('gradient_clip', 1)} or a lower learning_rate."
            )

    def progress(self, epoch: int, sums: Mapping[str, Tensor]) -> str:
        """Return loss, accepted share and imbalance so far in this epoch."""
        accepted = sums["accepted"]
        n_accepted, offered = int(accepted.sum()), max(1, int(sums["offered"]))
        steps = max(1, offered // self.settings.train_batch)
        imbalance = float(accepted.max()) * len(accepted) / max(1, n_accepted)
        loss = float(sums["loss"]) / steps
        return f"loss {loss:.3f}, accepted {n_accepted / offered:.0%}, imbalance {imbalance:.1f}"

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return D_PL, the mixture's labels, counts and margin, and everything recorded so far."""
        tensors, facts = self.context.state()
        tensors |= add_prefix(self.pseudo_labels.arrays(), "pseudo_labels.")
        tensors["accepted"] = torch.from_numpy(self.accepted)
        if self.mixture_labels is not None:
            tensors["mixture_labels"] = torch.from_numpy(self.mixture_labels)
        if self.objective.margin is not None:
            tensors["margin"] = self.objective.margin
        return tensors, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        n_classes = len(self.task.vocabulary)
        self.context.restore(tensors, facts, n_classes)
        self.pseudo_labels = read_labels(tensors, "pseudo_labels.", n_classes)
        self.accepted = tensors["accepted"].numpy()
        self.mixture_labels = tensors["mixture_labels"].numpy() if "mixture_labels" in tensors else None
        margin = tensors.get("margin")
        self.objective.margin = None if margin is None else margin.to(self.context.runtime.device)


class MixtureSchedule(CapSchedule):
    """Beyond the paper: D_PL is selected anew whenever it grows, from images that the student predicts as the class.

    No class is forced to have k images, so that rare classes are not filled with images of others.
    """

    def __init__(self, mixture: MixtureFit, *arguments: Any) -> None:  # noqa: ANN401 (those of CapSchedule)
        super().__init__(*arguments)
        self.confidence = float(mixture.probabilities.max(axis=1).mean())

    @torch.inference_mode()
    def changed_share(self) -> float:
        """Return the share of the unlabeled images that the student predicts differently from the mixture."""
        tuner = self.objective.tuner
        images = self.objective.source.embed_unlabeled(tuner, np.arange(self.n_images))
        logits = tuner.logits(images, tuner.class_embeddings()).masked_fill(~self.objective.allowed, -torch.inf)
        return round(float(np.mean(logits.argmax(dim=1).cpu().numpy() != self.mixture_labels)), 4)

    def grow(self, epoch: int) -> PseudoLabels:
        """Return the most confident images of each class, up to a number that grows to half of an even split."""
        _, probabilities, _ = self.objective.predict(np.arange(self.n_images))
        even = self.n_images / len(self.task.target_classes)
        k = min(float(self.settings.k), max(1.0, even))
        most = int(k + max(0.0, 0.5 * even - k) * epoch / self.settings.epochs)
        selected = top_k_per_class(probabilities, most, self.task.target_classes, predicted_only=True)
        return selected.stamped(epoch, Source.MODEL)


class ReleasedGrowth(CapSchedule):
    """D_PL as in the authors' code: selected anew after epochs 1, 6, 11, ..., with confident new images first."""

    def grows_in(self, epoch: int) -> bool:
        """Return whether D_PL is selected anew before an epoch."""
        return (epoch - 1) % self.settings.grow_every == 0

    def grow(self, epoch: int) -> PseudoLabels:
        """Return a larger D_PL, with new images only from the unlabeled images of the last epoch's steps."""
        settings, targets, last = self.settings, self.task.target_classes, epoch - 1
        size = released_size(settings.k, last, settings.epochs, self.n_images, len(targets), settings.growth_limit)
        seen = np.unique(np.concatenate([step.unlabeled for step in self.draw(last)]))
        _, probabilities, _ = self.objective.predict(seen)
        return rotate(self.pseudo_labels, seen, probabilities, size, settings.tau, targets, epoch)


def mean_of_pairs(margin: Tensor) -> float:
    """Return the mean margin over all pairs of different classes; the diagonal is zero."""
    n_classes = len(margin)
    return float(margin.sum()) / max(1, n_classes * (n_classes - 1))


def has_collapsed(accepted_shares: Sequence[float]) -> bool:
    """Return whether the last epoch is the first to accept less than a quarter of what the best epoch accepted."""
    quarter = max(accepted_shares) / 4
    return quarter >= 0.025 and len(accepted_shares) > 1 and accepted_shares[-1] < quarter <= accepted_shares[-2]
