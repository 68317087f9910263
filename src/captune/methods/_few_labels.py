"""What UPL, FPL, GRIP and CPL share: a student that learns from chosen pseudo-labels, once or round after round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn.functional import one_hot

from captune.backbones.base import Backbone
from captune.core import distributed, registry
from captune.core.arrays import Floats, Ints, softmax_rows
from captune.core.errors import InputError
from captune.core.settings import NonNegative, Positive, build
from captune.data.task import AdaptationTask
from captune.embeddings.embed import embed_classes
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.methods.base import Context
from captune.training.checkpoint import CheckpointFolder
from captune.training.feeds import Feed, Request
from captune.training.loop import Course, Optimization, fit
from captune.training.losses import loss_weights
from captune.training.pseudo_label_objective import PseudoLabeledViews, PseudoLabelObjective
from captune.tuners.base import Tuner

Share = Annotated[float, Ge(0), Le(1)]
Rate = Annotated[float, Gt(0)]

QUICK: Mapping[str, Any] = {
    "tuner": "feature_adapter",
    "epochs": 20,
    "train_batch": 64,
    "learning_rate": 0.003,
    "weight_decay": 0.0005,
    "warmup_epochs": 1,
    "gradient_clip": 10.0,  # with few given labels their weight |PL| / |L| makes steps too long without it
}
"""The same algorithm on cached embeddings, with shorter training; the rates of prompts do not suit an adapter."""
QUICK_ROUNDS: Mapping[str, Any] = {**QUICK, "epochs": 10}
"""The same for methods that train in rounds."""


@dataclass(frozen=True)
class FewLabelSettings:
    """How a student learns from pseudo-labels.

    Attributes:
        tuner: What is trained on the backbone; `captune list tuners` names them.
        tuner_settings: Settings of the tuner, e.g. {n_context: 4} for text_prompts, {depth: deep} for visual_prompts.
        epochs: Passes over the pseudo-labeled and given images, in every round.
        train_batch: Images of a step.
        learning_rate: The highest rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        warmup_epochs: Epochs until the highest rate is reached.
        gradient_clip: Largest gradient norm; 0 clips nothing.
    """

    tuner: str = "text_prompts"
    tuner_settings: dict[str, Any] | None = None
    epochs: Positive = 150
    train_batch: Positive = 16
    learning_rate: Rate = 0.1
    momentum: Share = 0.9
    weight_decay: Annotated[float, Ge(0)] = 0.1
    warmup_epochs: NonNegative = 5
    gradient_clip: Annotated[float, Ge(0)] = 0.0


class FewLabelTraining:
    """A student that learns from pseudo-labels as often as a method asks, every time from new random prompts.

    Every time is a part of the run's checkpoints: a run that was interrupted skips to the part it was in.
    """

    def __init__(self, task: AdaptationTask, backbone: Backbone, context: Context, settings: FewLabelSettings) -> None:
        self.task, self.backbone, self.context, self.settings = task, backbone, context, settings
        self.vectors = context.embed(backbone, task.unlabeled).vectors
        self.kept: dict[str, Tensor] = {}
        """What a method keeps of earlier parts; it is part of the checkpoints."""
        self.tuner = self._new_tuner(0)
        self._feed: Feed | None = None

    def zero_shot(self) -> Floats:
        """Return probabilities of the unlabeled images over the target classes, before any training."""
        classes = embed_classes(self.backbone, self.task.vocabulary)
        return self._among_targets(np.float32(self.backbone.logit_scale) * (self.vectors @ classes.T))

    @torch.inference_mode()
    def predict(self) -> Floats:
        """Return probabilities of the unlabeled images over the target classes, by the student as it is."""
        images = self._whole_feed().look(self.tuner, np.arange(len(self.vectors)))
        return self._among_targets(self.tuner.logits(images, self.tuner.class_embeddings()).cpu().numpy())

    def parts(self, n_parts: int) -> range:
        """Return the parts that are left to do, counted from 1; the first of them may be half done."""
        checkpoints = self.context.checkpoints
        _, newest = distributed.from_first(lambda: ({}, checkpoints.newest_part() if checkpoints else 0))
        return range(max(1, newest), n_parts + 1)

    def learn(
        self,
        labels: PseudoLabels,
        part: int = 1,
        *,
        strong_views: int = 0,
        prior: Floats | None = None,
        given_batch: tuple[int, int] | None = None,
    ) -> None:
        """Train new prompts on pseudo-labels; a part that was begun goes on with the labels it began with.

        With `strong_views` the student sees random crops. `prior` `(images, classes)` weighs the candidates of images
        that have several. With `given_batch`, the smallest and largest size, given images come in batches of their
        own, in proportion to the pseudo-labeled ones and with the same weight; else both are mixed.
        """
        context, settings = self.context, self.settings
        checkpoints = replace(context.checkpoints, part=part) if context.checkpoints else None
        labels = labels.stamped(part, Source.NAME if part == 1 else Source.MODEL)
        begun = checkpoints and distributed.from_first(lambda: _begun(checkpoints))[0]
        if begun:
            labels = _read_labels(begun, "course.labels.now.", labels.n_classes)
        self.tuner = self._new_tuner(part)
        feed, positions = self._whole_feed(), None
        if strong_views and len(labels):
            feed, labels = self._strong_feed(labels, strong_views)
            positions = np.arange(len(labels))
        n_given = len(feed.given_labels)
        if len(labels) + n_given:
            weights = (1.0, 1.0)
            if given_batch is None:
                weights = loss_weights(len(labels), n_given, len(self.task.seen_classes) > 0)
            objective = PseudoLabelObjective(self.tuner, feed, *weights).to(context.runtime.device)
            course = _FewLabelCourse(self, feed, labels, part, positions, prior, given_batch)
            chosen = {f.name: getattr(settings, f.name) for f in fields(Optimization) if f.name != "iterations"}
            with context.runtime.training(encodes_images=self.tuner.edits_images):
                plan = Optimization(iterations=course.iterations, **chosen)
                fit(objective, course, plan, context.runtime, checkpoints)
        context.history.append((part * settings.epochs, labels))

    def _new_tuner(self, part: int) -> Tuner:
        tuner_class = registry.load("tuners", self.settings.tuner)
        chosen = build(tuner_class.Settings, self.settings.tuner_settings or {}, "tuner settings")
        with self.context.runtime.seeded(part):
            tuner: Tuner = tuner_class(self.backbone, self.task.vocabulary, chosen)
        if not any(parameter.requires_grad for parameter in tuner.parameters()):
            raise InputError(
                f"tuner = {self.settings.tuner!r} has nothing to train. Choose another with --set tuner=..., "
                "such as text_prompts or feature_adapter."
            )
        return tuner.to(self.context.runtime.device)

    def _whole_feed(self) -> Feed:
        if self._feed is None:
            self._feed = self.context.feed(self.tuner, self.task, strong_views=0)
        return self._feed

    def _strong_feed(self, labels: PseudoLabels, strong_views: int) -> tuple[Feed, PseudoLabels]:
        """Return inputs of the labeled images only: random crops of all the others would never be looked at."""
        readable = self.task.unlabeled.subset(self.context.embed(self.backbone, self.task.unlabeled).image_index)
        few = replace(self.task, unlabeled=readable.subset(labels.image_index))
        still_there = self.context.embed(self.backbone, few.unlabeled).image_index
        return self.context.feed(self.tuner, few, strong_views), labels.subset(still_there)

    def _among_targets(self, logits: Floats) -> Floats:
        """Return probabilities given that an image is of a target class; the others get zero."""
        targets = self.task.target_classes
        probabilities = np.zeros_like(logits)
        probabilities[:, targets] = softmax_rows(logits[:, targets])
        return probabilities


class _FewLabelCourse(Course):
    """Passes over pseudo-labeled and given images; records every epoch."""

    def __init__(
        self,
        training: FewLabelTraining,
        feed: Feed,
        labels: PseudoLabels,
        part: int,
        positions: Ints | None,
        prior: Floats | None,
        given_batch: tuple[int, int] | None,
    ) -> None:
        self.training, self.context, self.settings = training, training.context, training.settings
        self.feed, self.labels, self.part, self.prior = feed, labels, part, prior
        self.strong_positions, self.given_batch = positions, given_batch

    @property
    def iterations(self) -> int:
        """Return the steps of an epoch."""
        n_given = 0 if self.given_batch and len(self.labels) else len(self.feed.given_labels)
        return -(-(len(self.labels) + n_given) // self.settings.train_batch)

    def begin(self, epoch: int) -> None:
        """Change nothing: the labels stay as they are for the whole training."""

    def batches(self, epoch: int, first_step: int) -> Iterator[PseudoLabeledViews]:
        """Yield the steps of a pass, drawn by seed, part and epoch alone."""
        device = self.context.runtime.device
        positions = self.labels.image_index if self.strong_positions is None else self.strong_positions
        nothing = np.empty(0, dtype=np.int64)
        requests = [
            Request(positions[chosen], given, nothing)
            if self.strong_positions is None
            else Request(nothing, given, positions[chosen])
            for chosen, given in self._draw(np.random.default_rng([self.context.runtime.seed, self.part, epoch]))
        ]
        entry_of = np.zeros(int(positions.max(initial=0)) + 1, dtype=np.int64)
        entry_of[positions] = np.arange(len(positions))
        for views in self.feed.views(requests, epoch, first_step):
            entries = entry_of[np.concatenate([views.request.reliable, views.request.unlabeled])]
            given_labels = torch.from_numpy(self.feed.given_labels[views.request.given])
            yield PseudoLabeledViews(views, self._targets(entries).to(device), given_labels.to(device))

    def end(self, epoch: int, sums: Mapping[str, Tensor]) -> None:
        """Record the epoch."""
        self.context.record(
            step="epoch",
            epoch=(self.part - 1) * self.settings.epochs + epoch + 1,
            round=self.part,
            loss=round(float(sums["loss"]) / self.iterations, 6),
            reliable=self.labels.counts().tolist(),
        )

    def describe(self, epoch: int, sums: Mapping[str, Tensor]) -> str:
        """Return the round and the loss so far in this epoch."""
        return f"round {self.part}, epoch {epoch + 1}, loss {float(sums['loss'] / sums['steps']):.3f}"

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the pseudo-labels with their history, and what the method keeps of earlier parts."""
        tensors = {f"kept.{name}": tensor for name, tensor in self.training.kept.items()}
        for when, labels in (*self.context.history, ("now", self.labels)):
            tensors |= {f"labels.{when}.{name}": torch.from_numpy(array) for name, array in labels.arrays().items()}
        return tensors, {"rounds": self.context.rounds, "history": [epoch for epoch, _ in self.context.history]}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        n_classes = self.labels.n_classes
        self.labels = _read_labels(tensors, "labels.now.", n_classes)
        self.training.kept = _named(tensors, "kept.")
        self.context.history[:] = [(e, _read_labels(tensors, f"labels.{e}.", n_classes)) for e in facts["history"]]
        self.context.rounds[:] = facts["rounds"]

    def _draw(self, generator: np.random.Generator) -> list[tuple[Ints, Ints]]:
        """Return entries of the pseudo-labels and positions of given images for every step, in even batches."""
        n_pseudo, n_given, size = len(self.labels), len(self.feed.given_labels), self.settings.train_batch
        n_steps = self.iterations
        if self.given_batch is None or not n_pseudo or not n_given:
            steps = np.array_split(generator.permutation(n_pseudo + n_given), n_steps)
            return [(step[step < n_pseudo], step[step >= n_pseudo] - n_pseudo) for step in steps]
        own = int(np.clip(size * n_given // n_pseudo, *self.given_batch))
        passes = [generator.permutation(n_given) for _ in range(-(-n_steps * own // n_given))]
        given = np.concatenate(passes)[: n_steps * own].reshape(n_steps, own)
        return list(zip(np.array_split(generator.permutation(n_pseudo), n_steps), given, strict=True))

    def _targets(self, entries: Ints) -> Tensor:
        """Return how much each class counts for some entries, `(entries, classes)`."""
        labels = self.labels
        if labels.candidates is None:
            return one_hot(torch.from_numpy(labels.labels[entries]), labels.n_classes).float()
        weights = labels.candidates[entries].astype(np.float32)
        if self.prior is not None:
            weights *= self.prior[labels.image_index[entries]]
            weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return torch.from_numpy(weights)


def _begun(checkpoints: CheckpointFolder) -> distributed.Parcel:
    """Return what is needed to go on; the length of a training depends on its labels, so they are read before it."""
    found = checkpoints.newest()
    return (dict(found.tensors) if found else {}), None


def _named(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}


def _read_labels(tensors: Mapping[str, Tensor], start: str, n_classes: int) -> PseudoLabels:
    arrays = {name: tensor.numpy() for name, tensor in _named(tensors, start).items()}
    return PseudoLabels.from_arrays(arrays, n_classes)
