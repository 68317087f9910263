"""The training schedules of CAP: how D_PL grows, and the margin of each epoch.

`CapSchedule` follows the paper; `ReleasedSchedule` and `NeighborhoodSchedule` depart from it.
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
from captune.core.arrays import Floats, Ints
from captune.data.task import AdaptationTask
from captune.labeling.neighborhood import NeighborhoodVote
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.labeling.selection import top_k_per_class
from captune.methods.base import Context, read_labels
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
        neighbor_labels: Ints | None,
        n_images: int,
        context: Context,
        settings: CapSettings,
    ) -> None:
        self.task, self.objective, self.n_images = task, objective, n_images
        self.context, self.settings = context, settings
        self.pseudo_labels = pseudo_labels  # D_PL
        self.neighbor_labels = neighbor_labels  # with which the student's own pseudo-labels must agree
        self.accepted = np.zeros(len(task.vocabulary), dtype=np.int64)

    def begin_epoch(self, epoch: int) -> None:
        """Grow D_PL every few epochs (Appendix B) and compute the margin of the epoch (Section 3.2)."""
        if epoch and self.grows_in(epoch):
            self.context.history.append((epoch, self.pseudo_labels))
            _, probabilities, _ = self.objective.predict(np.arange(self.n_images))
            self.pseudo_labels = self.grow(probabilities, epoch)
        if epoch and self.settings.margin:  # the first epoch warms up without a margin
            images, probabilities, classes = self.objective.predict(self.pseudo_labels.image_index)
            prototypes = class_prototypes(images, self.pseudo_labels.labels, classes)
            margin = self.margin(class_similarity(prototypes, classes), probabilities)
            self.context.arrays.update(similarity=margin.similarity, margin=margin.matrix)
            self.objective.margin = torch.from_numpy(margin.matrix).to(self.context.runtime.device)

    def grows_in(self, epoch: int) -> bool:
        """Return whether D_PL grows before an epoch."""
        return epoch % self.settings.grow_every == 0

    def grow(self, probabilities: Floats, epoch: int) -> PseudoLabels:
        """Return D_PL with the most confident new images of each class added."""
        settings, targets = self.settings, self.task.target_classes
        n_new = max(1, int(self.n_images * settings.grow_every / (settings.epochs * len(targets))))
        unused = np.setdiff1d(np.arange(self.n_images), self.pseudo_labels.image_index)
        new = top_k_per_class(probabilities[unused], n_new, targets, predicted_only=True)
        return self.pseudo_labels.extend(new.reindexed(unused).stamped(epoch, Source.MODEL))

    def margin(self, similarity: Floats, probabilities: Floats) -> ConfusionMargin:
        """Return the margin from the confident predictions on D_PL (Eqs. 3 to 7)."""
        return confusion_margin(
            similarity,
            confident_counts(probabilities, self.settings.tau),
            margin=self.settings.margin_scale,
            logit_scale=self.objective.tuner.backbone.logit_scale if self.settings.scale_margin else None,
            labeled=self.task.seen_classes,
        )

    def batches(self, epoch: int, first_step: int) -> Iterator[CapBatch]:
        """Yield steps over D_PL, labeled and unlabeled images, which depend on seed and epoch only."""
        settings, source, device = self.settings, self.objective.source, self.context.runtime.device
        generator = np.random.default_rng([self.context.runtime.seed, epoch])
        drawn = [
            draw_batches(generator, n_items, settings.iterations, settings.train_batch)
            for n_items in (len(self.pseudo_labels), len(source.labels), self.n_images)
        ]
        requests = [
            Request(self.pseudo_labels.image_index[pseudo_labeled], labeled, unlabeled)
            for pseudo_labeled, labeled, unlabeled in zip(*drawn, strict=True)
        ]
        label_of = np.full(self.n_images, -1, dtype=np.int64)
        label_of[self.pseudo_labels.image_index] = self.pseudo_labels.labels
        for views in source.views(requests, epoch, first_step):
            pseudo_labeled, labeled, unlabeled = views.request
            neighbor_labels = None if self.neighbor_labels is None else self.neighbor_labels[unlabeled]
            yield CapBatch(
                views,
                torch.from_numpy(label_of[pseudo_labeled]).to(device),
                torch.from_numpy(source.labels[labeled]).to(device),
                None if neighbor_labels is None else torch.from_numpy(neighbor_labels).to(device),
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
        )
        shares = [facts["accepted_share"] for facts in self.context.rounds if facts["step"] == "epoch"]
        if has_collapsed(shares):
            self.context.say(
                f"In epoch {epoch + 1} only {shares[-1]:.1%} of the pseudo-labels were accepted, compared to "
                f"{max(shares):.0%} at best: the training is collapsing. Stop it, and start a new run with "
                "--set gradient_clip=1 or a lower learning_rate."
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
        """Return D_PL, neighbor labels, counts and margin, and everything recorded so far."""
        tensors, facts = self.context.state()
        tensors |= add_prefix(self.pseudo_labels.arrays(), "pseudo_labels.")
        tensors["accepted"] = torch.from_numpy(self.accepted)
        if self.neighbor_labels is not None:
            tensors["neighbor_labels"] = torch.from_numpy(self.neighbor_labels)
        if self.objective.margin is not None:
            tensors["margin"] = self.objective.margin
        return tensors, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        n_classes = len(self.task.vocabulary)
        self.context.restore(tensors, facts, n_classes)
        self.pseudo_labels = read_labels(tensors, "pseudo_labels.", n_classes)
        self.accepted = tensors["accepted"].numpy()
        self.neighbor_labels = tensors["neighbor_labels"].numpy() if "neighbor_labels" in tensors else None
        margin = tensors.get("margin")
        self.objective.margin = None if margin is None else margin.to(self.context.runtime.device)


class NeighborhoodSchedule(CapSchedule):
    """Beyond the paper: D_PL is selected anew by a neighborhood vote whenever it grows."""

    def __init__(self, vote: NeighborhoodVote, *arguments: Any) -> None:  # noqa: ANN401 (those of CapSchedule)
        super().__init__(*arguments)
        self.vote = vote

    def grow(self, probabilities: Floats, epoch: int) -> PseudoLabels:
        """Return the images on whose label neighbors agree, up to a share of an even split that grows with time."""
        k = self.settings.k
        even = max(k, self.n_images / len(self.task.target_classes))
        most = int(k + (even - k) * epoch / self.settings.epochs)
        selected, self.neighbor_labels = self.vote.select(probabilities, k, most)
        return selected.stamped(epoch, Source.MODEL)


class ReleasedSchedule(CapSchedule):
    """The authors' release where it departs from the paper."""

    def grows_in(self, epoch: int) -> bool:
        """Return True: D_PL is selected anew before every epoch."""
        return True

    def grow(self, probabilities: Floats, epoch: int) -> PseudoLabels:
        """Return the most confident images of each class, whose number grows to 80 % of an even split."""
        k, targets = self.settings.k, self.task.target_classes
        most = max(k, min(1000, int(0.8 * self.n_images / len(targets))))
        k += int((most - k) * min(1.0, epoch / (0.7 * self.settings.epochs)))
        return top_k_per_class(probabilities, k, targets).stamped(epoch, Source.MODEL)

    def margin(self, similarity: Floats, probabilities: Floats) -> ConfusionMargin:
        """Return the unscaled margin from the pseudo-labels accepted in the previous epoch."""
        return confusion_margin(
            similarity,
            self.accepted,
            margin=self.settings.margin_scale,
            recipe="released",
            labeled=self.task.seen_classes,
        )


def has_collapsed(accepted_shares: Sequence[float]) -> bool:
    """Return whether the last epoch is the first to accept less than a quarter of what the best epoch accepted."""
    quarter = max(accepted_shares) / 4
    return quarter >= 0.025 and len(accepted_shares) > 1 and accepted_shares[-1] < quarter <= accepted_shares[-2]
