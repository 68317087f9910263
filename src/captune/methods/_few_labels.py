"""What UPL, FPL, GRIP and CPL share: a student that learns from selected pseudo-labels, once or in rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from captune.backbones.base import Backbone
from captune.core import distributed, registry
from captune.core.arrays import Floats, Ints, softmax_rows
from captune.core.errors import InputError
from captune.core.settings import NonNegative, NonNegativeFloat, Positive, Rate, build
from captune.core.text import option
from captune.data.task import AdaptationTask
from captune.embeddings.embed import embed_classes
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.methods.base import Context, PseudoLabelSchedule, read_pseudo_labels
from captune.training.batch_sources import BatchSource, Request, draw_batches
from captune.training.checkpoint import with_prefix
from captune.training.loop import Optimization
from captune.training.losses import loss_weights
from captune.training.objective import PseudoLabelBatch, PseudoLabelObjective
from captune.tuners.base import Tuner

QUICK: Mapping[str, Any] = {
    "tuner": "feature_adapter",
    "epochs": 20,
    "train_batch": 64,
    "learning_rate": 0.003,
    "weight_decay": 0.0005,
    "warmup_epochs": 1,
    "gradient_clip": 10.0,  # with few labels, their weight |PL| / |L| makes steps too long without it
}
"""The same algorithm on cached embeddings with shorter training; learning rates of prompts do not suit an adapter."""
PRESETS: Mapping[str, Mapping[str, Any]] = {"full": {}, "quick": QUICK}
PRESETS_OF_ROUNDS: Mapping[str, Mapping[str, Any]] = {"full": {}, "quick": {**QUICK, "epochs": 10}}
"""With shorter training, for methods that train in rounds."""


@dataclass(frozen=True)
class FewLabelSettings(Optimization):
    """How a student learns from pseudo-labels.

    Attributes:
        tuner: What is trained on the backbone; see `captune list tuners`.
        tuner_settings: Settings of the tuner, e.g. {n_context: 4} for text_prompts.
        epochs: Number of passes over the pseudo-labeled and labeled images in each round.
        train_batch: Number of images per step.
    """

    tuner_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"text_prompts": {"full_stop": False}}
    """Settings of a tuner that differ from its own defaults, as in the authors' code."""
    tuner: str = "text_prompts"
    tuner_settings: dict[str, Any] | None = None
    epochs: Positive = 150
    train_batch: Positive = 16
    learning_rate: Rate = 0.1
    weight_decay: NonNegativeFloat = 0.1
    warmup_epochs: NonNegative = 5


class FewLabelTraining(PseudoLabelSchedule):
    """A student that is trained on pseudo-labels one or more times, each time from new random prompts.

    Each training is a numbered part of the run's checkpoints: a resumed run skips to the part that was interrupted. As
    a schedule, it passes over pseudo-labeled and labeled images, whose labels stay the same throughout a part.
    """

    def __init__(self, task: AdaptationTask, backbone: Backbone, context: Context, settings: FewLabelSettings) -> None:
        self.task, self.backbone, self.context, self.settings = task, backbone, context, settings
        self.vectors = context.embed(backbone, task.unlabeled).vectors
        self.kept: dict[str, Tensor] = {}
        """Tensors that a method keeps from earlier parts; they are saved in the checkpoints."""

        def interrupted() -> distributed.Payload:
            part, found = context.checkpoints.newest_of_all() if context.checkpoints else (1, None)
            return (dict(found.tensors) if found else {}), part

        tensors, self.part = distributed.from_first(interrupted)
        # An interrupted part goes on with its own labels, on which its length depends.
        n_classes, own = len(task.vocabulary), "schedule.pseudo_labels."
        self.interrupted = read_pseudo_labels(tensors, own, n_classes) if tensors else None

    @cached_property
    def full_source(self) -> BatchSource:
        """The source of all unlabeled and labeled images."""
        return self.context.batch_source(self.tuner, self.task)

    def zero_shot(self) -> Floats:
        """Return probabilities of the unlabeled images over the target classes, before any training."""
        classes = embed_classes(self.backbone, self.task.vocabulary)
        return self._among_targets(np.float32(self.backbone.logit_scale) * (self.vectors @ classes.T))

    @torch.inference_mode()
    def predict(self) -> Floats:
        """Return probabilities of the unlabeled images over the target classes, by the current student."""
        images = self.full_source.embed_unlabeled(self.tuner, np.arange(len(self.vectors)))
        return self._among_targets(self.tuner.logits(images, self.tuner.class_embeddings()).cpu().numpy())

    def parts(self, n_parts: int) -> range:
        """Return the remaining parts, counted from 1; the first of them may have been interrupted."""
        return range(self.part, n_parts + 1)

    def learn(
        self,
        labels: PseudoLabels,
        part: int = 1,
        *,
        strong_views: int = 0,
        prior: Floats | None = None,
        labeled_batch: tuple[int, int] | None = None,
    ) -> PseudoLabels:
        """Train new prompts on pseudo-labels and return these; an interrupted part continues with those it had.

        With `strong_views`, the student sees random crops. `prior` `(images, classes)` weights the candidates of
        images that have several. With `labeled_batch`, a minimum and maximum size, labeled images come in separate
        batches, in proportion to the pseudo-labeled ones and with the same weight; otherwise both are mixed.
        """
        labels = labels.stamped(part, Source.NAME if part == 1 else Source.MODEL)
        if self.interrupted is not None:
            labels, self.interrupted = self.interrupted, None
        self.tuner = self._new_tuner(part)
        self.source = self.context.batch_source(self.tuner, self.task, strong_views, labels.image_index)
        n_labeled = len(self.source.labels)
        self.pseudo_labels, self.part, self.prior, self.labeled_batch = labels, part, prior, labeled_batch
        self.is_strong = strong_views > 0
        n_mixed = 0 if labeled_batch and len(labels) else n_labeled
        self.iterations = -(-(len(labels) + n_mixed) // self.settings.train_batch)
        if len(labels) + n_labeled:
            has_seen = len(self.task.seen_classes) > 0
            weights = (1.0, 1.0) if labeled_batch else loss_weights(len(labels), n_labeled, has_seen)
            objective = PseudoLabelObjective(self.tuner, self.source, *weights)
            self.context.train(objective, self, self.settings, part)
        self.context.history.append((part * self.settings.epochs, self.pseudo_labels))
        return self.pseudo_labels

    def batches(self, epoch: int, first_step: int) -> Iterator[PseudoLabelBatch]:
        """Yield the steps of an epoch, with the weight of each class as the label of an image."""
        device, none = self.context.runtime.device, np.empty(0, dtype=np.int64)
        requests = [
            Request(none, labeled, entries) if self.is_strong else Request(entries, labeled, none)
            for entries, labeled in self._draw(np.random.default_rng([self.context.runtime.seed, self.part, epoch]))
        ]
        for views in self.source.views(requests, epoch, first_step):
            entries = np.concatenate([views.request.pseudo_labeled, views.request.unlabeled])
            labels = torch.from_numpy(self.source.labels[views.request.labeled])
            yield PseudoLabelBatch(views, self._targets(entries).to(device), labels.to(device))

    def end_epoch(self, epoch: int, sums: Mapping[str, Tensor]) -> None:
        """Record the epoch."""
        self.context.record(
            step="epoch",
            epoch=(self.part - 1) * self.settings.epochs + epoch + 1,
            round=self.part,
            loss=round(float(sums["loss"]) / self.iterations, 6),
            pseudo_labeled=self.pseudo_labels.counts().tolist(),
        )

    def progress(self, epoch: int, sums: Mapping[str, Tensor]) -> str:
        """Return round, epoch and loss."""
        return f"round {self.part}, epoch {epoch + 1}, loss {float(sums['loss'] / sums['steps']):.3f}"

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the labels, what is kept from earlier parts, and everything recorded so far."""
        tensors, facts = super().state()
        return {**tensors, **{f"kept.{name}": tensor for name, tensor in self.kept.items()}}, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        super().restore(tensors, facts)
        self.kept = with_prefix(tensors, "kept.")

    def _new_tuner(self, part: int) -> Tuner:
        tuner_class = registry.load("tuners", self.settings.tuner)
        wanted = {**self.settings.tuner_defaults.get(self.settings.tuner, {}), **(self.settings.tuner_settings or {})}
        chosen = build(tuner_class.Settings, wanted, "tuner settings")
        with self.context.runtime.seeded(part):
            tuner: Tuner = tuner_class(self.backbone, self.task.vocabulary, chosen)
        if not any(parameter.requires_grad for parameter in tuner.parameters()):
            raise InputError(
                f"tuner = {self.settings.tuner!r} has nothing to train. Try {option('tuner', 'text_prompts')}."
            )
        return tuner.to(self.context.runtime.device)

    def _among_targets(self, logits: Floats) -> Floats:
        """Return probabilities conditional on the target classes; the others are zero."""
        targets = self.task.target_classes
        probabilities = np.zeros_like(logits)
        probabilities[:, targets] = softmax_rows(logits[:, targets])
        return probabilities

    def _draw(self, generator: np.random.Generator) -> list[tuple[Ints, Ints]]:
        """Return entries of the pseudo-labels and positions of labeled images for each step, in even batches."""
        n_pseudo, n_labeled, n_steps = len(self.pseudo_labels), len(self.source.labels), self.iterations
        if self.labeled_batch is None or not n_pseudo or not n_labeled:
            steps = np.array_split(generator.permutation(n_pseudo + n_labeled), n_steps)
            return [(step[step < n_pseudo], step[step >= n_pseudo] - n_pseudo) for step in steps]
        size = int(np.clip(self.settings.train_batch * n_labeled // n_pseudo, *self.labeled_batch))
        labeled = draw_batches(generator, n_labeled, n_steps, size)
        return list(zip(np.array_split(generator.permutation(n_pseudo), n_steps), labeled, strict=True))

    def _targets(self, entries: Ints) -> Tensor:
        """Return the weight of each class as the label of some entries, `(entries, classes)`."""
        labels = self.pseudo_labels
        if labels.candidates is None:
            return one_hot(torch.from_numpy(labels.labels[entries]), labels.n_classes).float()
        weights = labels.candidates[entries].astype(np.float32)
        if self.prior is not None:
            weights *= self.prior[labels.image_index[entries]]
            weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return torch.from_numpy(weights)
