"""CAP: concept alignment, then training with a confusion-aware calibrated margin on growing pseudo-labels (ICML 2025).

`Cap` aligns concepts and selects the first pseudo-labels D_PL (Section 3.1). `CapSchedule` computes the margin of each
epoch (Section 3.2) and grows D_PL (Appendix B). The loss (Section 3.3) is `training/objective.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from captune.backbones.base import Backbone
from captune.concepts.alignment import Scope
from captune.concepts.confusion import (
    ConfusionMargin,
    class_prototypes,
    class_similarity,
    confident_counts,
    confusion_margin,
)
from captune.concepts.mismatch import DETECTIONS, Detection
from captune.core import registry
from captune.core.errors import InputError
from captune.core.settings import NonNegativeFloat, Positive, Share
from captune.data.task import AdaptationTask
from captune.embeddings.embed import embed_classes
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.labeling.selection import Ranking, add_confident, class_mask, first_labels, top_k_per_class
from captune.methods.base import Context, Method, PseudoLabelSchedule
from captune.mixture.gaussian_mixture import MixtureFit
from captune.training.batch_sources import Request, draw_batches
from captune.training.loop import Optimization
from captune.training.objective import CapBatch, ConfusionObjective
from captune.tuners.base import Tuner
from captune.tuners.feature_adapter import FeatureAdapter


@dataclass(frozen=True)
class CapSettings(Optimization):
    """The settings of CAP; the defaults are those of the paper (Appendix C), which the preset `quick` changes.

    Attributes:
        tuner: What is trained on the backbone; see `captune list tuners`.
        concept_alignment: Whether misleading class names are detected and described.
        detection: `paper` runs Algorithm 1 once with t = ceil(C/10); `robust` runs it ten times with a larger t.
        describe: Which classes are described: those with misleading names (`mismatched`), all, or with `auto` all if
            descriptions separate the images better than names, else none; `confused`: by how confused classes differ.
        choose: Whether a class is represented by its best description or by the mean of all.
        class_texts: Whether the student starts from the class names or from the chosen descriptions.
        start_from: Beyond the paper: `transductive` takes the first pseudo-labels from the Gaussian mixture of that
            method, and the tuner `feature_adapter` starts as this mixture; `zero_shot` is the paper.
        k: Number of images per class that are pseudo-labeled before training.
        tau: Confidence from which a prediction becomes a pseudo-label.
        margin: Whether the loss has the confusion-aware calibrated margin.
        margin_scale: The margin m, in logits at a logit scale of 100.
        count_on: Which confident predictions the margin counts: those on the `pseudo_labeled` images, as in the paper,
            or those `accepted` in the steps of the previous epoch, as in the authors' code.
        independent_adapters: Whether pseudo-labels made during training have their own adapter.
        strong_views: Number of augmented views of each image that are embedded, if the image encoder is frozen.
        grow_every: Number of epochs between two growths of the pseudo-labeled images.
        epochs: Number of epochs of `iterations` steps.
        iterations: Number of steps per epoch.
        train_batch: Number of images of each kind per step.
    """

    tuner: str = "maple"
    concept_alignment: bool = True
    detection: Detection = "paper"
    describe: Literal["auto", "mismatched", "confused", "all"] = "mismatched"
    choose: Literal["best", "mean"] = "best"
    class_texts: Literal["names", "aligned"] = "names"
    start_from: Literal["zero_shot", "transductive"] = "zero_shot"
    k: Positive = 16
    tau: Share = 0.85
    margin: bool = True
    margin_scale: NonNegativeFloat = 12.0
    count_on: Literal["pseudo_labeled", "accepted"] = "pseudo_labeled"
    independent_adapters: bool = True
    strong_views: Positive = 4
    grow_every: Positive = 5
    iterations: Positive = 50
    train_batch: Positive = 32
    weight_decay: NonNegativeFloat = 0.1


STEPS_X_CLASSES, FEWEST_STEPS = 250_000, 10
"""Limit on steps times classes of a training that starts from the mixture: 500 steps with 500 classes. The cost of a
step grows with the classes, and the steps change few labels. An epoch, which has a margin to compute, keeps so many."""
FULL: Mapping[str, Any] = {"class_texts": "aligned", "gradient_clip": 20.0}
"""The paper's settings, but that the student starts from the texts that made its labels, and no step is too long."""

QUICK: Mapping[str, Any] = {
    "tuner": "feature_adapter",
    "detection": "robust",
    "describe": "auto",
    "start_from": "transductive",
    "class_texts": "aligned",
    "count_on": "accepted",
    "grow_every": 1,
    "epochs": 10,
    "learning_rate": 0.001,
    "gradient_clip": 0.05,
}
PRESETS = {"full": FULL, "quick": QUICK}


class Cap(Method):
    """Concept-adaptive pseudo-labeling."""

    Settings = CapSettings
    presets = PRESETS

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Align concepts, select the first pseudo-labels, then train while they grow."""
        schedule = self.prepare(task, backbone, context)
        tuner, mixture = schedule.tuner, schedule.mixture
        context.train(schedule.objective, schedule, schedule.settings)
        context.history.append((schedule.settings.epochs, schedule.pseudo_labels))
        if mixture is not None:
            if isinstance(tuner, FeatureAdapter):
                confidence = float(mixture.probabilities.max(axis=1).mean())
                tuner.calibrate(context.embed(backbone, task.unlabeled).vectors, confidence)
            changed = schedule.changed_share()
            context.record(step="mixture", changed=changed)
            context.say(f"CAP changed {changed:.1%} of the labels of the Gaussian mixture that it started from.")
        return tuner

    def prepare(self, task: AdaptationTask, backbone: Backbone, context: Context) -> CapSchedule:
        """Return the training schedule, with the first pseudo-labels and the student before its first step."""
        settings: CapSettings = self.settings
        if len(task.unlabeled) == 0:
            raise InputError(
                f"All {len(task.labeled)} images are labeled, but CAP learns from others: add unlabeled images."
            )
        images, targets = context.embed(backbone, task.unlabeled).vectors, task.target_classes

        # Section 3.1: describe misleading class names, and select the first pseudo-labels D_PL.
        scope: Scope = settings.describe if settings.concept_alignment else "none"
        detection = replace(DETECTIONS[settings.detection], seed=context.runtime.seed)
        alignment = context.align_concepts(
            task, backbone, scope, settings.choose, detection if settings.concept_alignment else None
        )
        mixture, k = None, settings.k
        if settings.start_from == "zero_shot":  # the paper
            names, described = embed_classes(backbone, task.vocabulary), alignment.vectors(backbone)
            # A cosine ranks the images of a few described classes best, a probability those of many.
            ranking: Ranking = "cosine" if settings.describe == "mismatched" else "probability"
            first = first_labels(
                images, names, backbone.logit_scale, described, k=k, allowed=targets, rank_described_by=ranking
            )
        else:
            mixture = context.fit_mixture(task, backbone, embed_classes(backbone, alignment.vocabulary))
            k = min(k, max(1, len(images) // len(targets)))  # no more than a class can have
            first = top_k_per_class(mixture.probabilities, k, targets, predicted_only=True)
            steps = max(5 * FEWEST_STEPS, STEPS_X_CLASSES // len(task.vocabulary))
            if settings.epochs * settings.iterations > steps:
                epochs = min(settings.epochs, steps // FEWEST_STEPS)
                settings = replace(settings, epochs=epochs, iterations=steps // epochs)
                context.say(f"With {len(task.vocabulary)} classes, CAP trains for {steps} steps in {epochs} epochs.")

        # Section 3.3: the student learns from D_PL and from its own confident predictions.
        vocabulary = task.vocabulary if settings.class_texts == "names" else alignment.vocabulary
        tuner: Tuner = registry.load("tuners", settings.tuner)(backbone, vocabulary)
        if mixture is not None and isinstance(tuner, FeatureAdapter):
            tuner = tuner.with_mixture(mixture)
        source = context.batch_source(tuner.to(context.runtime.device), task, settings.strong_views)
        allowed = torch.from_numpy(class_mask(targets, len(vocabulary)))
        objective = ConfusionObjective(tuner, source, allowed, settings.tau, settings.independent_adapters)
        return CapSchedule(task, context, settings, objective, first, mixture)


@dataclass(eq=False)
class CapSchedule(PseudoLabelSchedule):
    """The epochs of CAP: D_PL (`pseudo_labels`) grows every few epochs, and every epoch has its own margin."""

    task: AdaptationTask
    context: Context
    settings: CapSettings
    objective: ConfusionObjective
    pseudo_labels: PseudoLabels
    mixture: MixtureFit | None

    def __post_init__(self) -> None:
        self.tuner, self.iterations = self.objective.tuner, self.settings.iterations
        self.n_images = len(self.task.unlabeled)
        # The labels of all images by the mixture, with which the student must agree.
        self.mixture_labels = None if self.mixture is None else self.mixture.probabilities.argmax(axis=1)
        self.accepted = np.zeros(len(self.task.vocabulary), dtype=np.int64)

    def begin_epoch(self, epoch: int) -> None:
        """Grow D_PL every few epochs (Appendix B) and compute the margin of the epoch (Section 3.2)."""
        if epoch and epoch % self.settings.grow_every == 0:
            self.context.history.append((epoch, self.pseudo_labels))
            self.pseudo_labels = self._grow(epoch)
        if epoch and self.settings.margin:  # the first epoch warms up without a margin
            self.objective.margin = torch.from_numpy(self._margin().matrix).to(self.context.runtime.device)

    def _grow(self, epoch: int) -> PseudoLabels:
        settings, targets, n_images = self.settings, self.task.target_classes, self.n_images
        probabilities = self.objective.predict(*self.objective.embed(np.arange(n_images)))
        if self.mixture is None:
            n_new = max(1, int(n_images * settings.grow_every / (settings.epochs * len(targets))))
            return add_confident(self.pseudo_labels, probabilities, n_new, targets, epoch)
        # Beyond the paper: selected anew, up to half of an even split, and only images that are predicted as the class,
        # so that rare classes are not filled with images of others.
        even = n_images / len(targets)
        k = min(float(settings.k), max(1.0, even))
        most = int(k + max(0.0, 0.5 * even - k) * epoch / settings.epochs)
        selected = top_k_per_class(probabilities, most, targets, predicted_only=True)
        return selected.stamped(epoch, Source.MODEL)

    def _margin(self) -> ConfusionMargin:
        """Return the margin from the similarity of the classes and their confident predictions (Eqs. 2 to 7)."""
        settings, labels = self.settings, self.pseudo_labels
        images, classes = self.objective.embed(labels.image_index)
        counts, rows = self.accepted, None
        if settings.count_on == "pseudo_labeled":
            counts = confident_counts(self.objective.predict(images, classes), settings.tau)
        texts = classes.cpu().numpy()
        if self.mixture_labels is not None:  # no image is labeled as another class, so the margin of others is not read
            rows = np.unique(np.concatenate([self.mixture_labels, labels.labels, self.objective.source.labels]))
        return confusion_margin(
            class_similarity(class_prototypes(images.cpu().numpy(), labels.labels, texts), texts, rows),
            counts,
            margin=settings.margin_scale,
            logit_scale=self.tuner.backbone.logit_scale,
            labeled=self.task.seen_classes,
        )

    def batches(self, epoch: int, first_step: int) -> Iterator[CapBatch]:
        """Yield the steps of an epoch: views of D_PL, labeled and unlabeled images, with their labels."""
        settings, labels, source = self.settings, self.pseudo_labels, self.objective.source
        device, mixture = self.context.runtime.device, self.mixture_labels
        generator = np.random.default_rng([self.context.runtime.seed, epoch])
        drawn = [
            draw_batches(generator, n_items, settings.iterations, settings.train_batch)
            for n_items in (len(labels), len(source.labels), self.n_images)
        ]
        requests = [Request(labels.image_index[chosen], *others) for chosen, *others in zip(*drawn, strict=True)]
        label_of = np.full(self.n_images, -1, dtype=np.int64)
        label_of[labels.image_index] = labels.labels
        for views in source.views(requests, epoch, first_step):
            request = views.request
            yield CapBatch(
                views,
                torch.from_numpy(label_of[request.pseudo_labeled]).to(device),
                torch.from_numpy(source.labels[request.labeled]).to(device),
                None if mixture is None else torch.from_numpy(mixture[request.unlabeled]).to(device),
            )

    def end_epoch(self, epoch: int, sums: Mapping[str, Tensor]) -> None:
        """Record the epoch with the number of accepted pseudo-labels per class."""
        self.accepted = sums["accepted"].cpu().numpy()
        margin = torch.zeros(1) if self.objective.margin is None else self.objective.margin
        n_pairs = len(self.accepted) * (len(self.accepted) - 1)
        self.context.record(
            step="epoch",
            epoch=epoch + 1,
            loss=round(float(sums["loss"]) / self.settings.iterations, 6),
            accepted_share=round(float(self.accepted.sum()) / max(1, int(sums["offered"])), 4),
            accepted=self.accepted.tolist(),
            pseudo_labeled=self.pseudo_labels.counts().tolist(),
            largest_margin=round(float(margin.max()), 4),
            mean_margin=round(float(margin.sum()) / max(1, n_pairs), 4),
        )
        self.objective.margin = None  # the next epoch has its own, so no checkpoint between them holds a matrix

    def progress(self, epoch: int, sums: Mapping[str, Tensor]) -> str:
        """Return loss and accepted share so far in this epoch."""
        offered = max(1, int(sums["offered"]))
        loss = float(sums["loss"]) / max(1, offered // self.settings.train_batch)
        return f"loss {loss:.3f}, accepted {int(sums['accepted'].sum()) / offered:.0%}"

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return D_PL, the mixture's labels, counts and margin, and everything recorded so far."""
        tensors, facts = super().state()
        own = {"accepted": self.accepted, "mixture_labels": self.mixture_labels}
        tensors |= {name: torch.from_numpy(array) for name, array in own.items() if array is not None}
        return tensors if self.objective.margin is None else {**tensors, "margin": self.objective.margin}, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        super().restore(tensors, facts)
        self.accepted = tensors["accepted"].numpy()
        self.mixture_labels = tensors["mixture_labels"].numpy() if "mixture_labels" in tensors else None
        margin = tensors.get("margin")
        self.objective.margin = None if margin is None else margin.to(self.context.runtime.device)

    @torch.inference_mode()
    def changed_share(self) -> float:
        """Return the share of the unlabeled images that the student predicts differently from the mixture."""
        tuner = self.tuner
        images = self.objective.source.embed_unlabeled(tuner, np.arange(self.n_images))
        logits = tuner.logits(images, tuner.class_embeddings()).masked_fill(~self.objective.allowed, -torch.inf)
        return round(float(np.mean(logits.argmax(dim=1).cpu().numpy() != self.mixture_labels)), 4)
