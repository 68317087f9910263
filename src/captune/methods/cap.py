"""CAP: concept alignment, then training with a confusion-aware calibrated margin on growing pseudo-labels (ICML 2025).

`Cap` aligns concepts and selects the first pseudo-labels D_PL (Section 3.1). `_cap_schedules.py` computes the margin of
each epoch (Section 3.2) and grows D_PL (Appendix B). The loss (Section 3.3) is `training/objective.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from captune.backbones.base import Backbone
from captune.concepts.alignment import Alignment
from captune.concepts.confusion import Tendency
from captune.concepts.mismatch import PAPER_MISMATCH, MismatchSettings
from captune.core import registry
from captune.core.arrays import Ints
from captune.core.errors import InputError
from captune.core.runtime import threads_for
from captune.core.settings import NonNegative, NonNegativeFloat, Positive, PositiveShare, Rate, Share
from captune.data.task import AdaptationTask
from captune.embeddings.embed import embed_classes
from captune.labeling.pseudo_labels import PseudoLabels
from captune.labeling.selection import (
    Ranking,
    class_mask,
    first_labels,
    top_k_per_class,
)
from captune.methods._cap_schedules import CapSchedule, MixtureSchedule, ReleasedGrowth
from captune.methods.base import Context, Method
from captune.mixture.gaussian_mixture import MixtureFit, fit_gaussian_mixture
from captune.training.loop import Optimization, fit
from captune.training.objective import ConfusionObjective
from captune.tuners.base import Tuner
from captune.tuners.feature_adapter import FeatureAdapter


@dataclass(frozen=True)
class CapSettings:
    """The settings of CAP; the defaults are those of the paper (Appendix C), which the preset `quick` changes.

    Attributes:
        recipe: `paper`, or `released` as in the authors' code: the default of growth, tendency, count_on and
            scale_margin.
        tuner: What is trained on the backbone; see `captune list tuners`.
        concept_alignment: Whether misleading class names are detected and described.
        detection: `paper` runs Algorithm 1 once with t = ceil(C/10); `robust` runs it ten times with a larger t.
        describe: Which classes are described: those with misleading names (`mismatched`), all, or with `auto` all if
            descriptions separate the images better than names, else none.
        choose: Whether a class is represented by its best description or by the mean of all.
        class_texts: Whether the student starts from the class names or from the chosen descriptions.
        start_from: Beyond the paper: `transductive` takes the first pseudo-labels from the Gaussian mixture of that
            method, and the tuner `feature_adapter` starts as this mixture; `zero_shot` is the paper.
        k: Number of images per class that are pseudo-labeled before training.
        tau: Confidence from which a prediction becomes a pseudo-label.
        margin: Whether the loss has the confusion-aware calibrated margin.
        margin_scale: The margin m, in logits at a logit scale of 100.
        scale_margin: Whether m is converted to the model's own logit scale; by default as in the recipe.
        tendency: How much a class is neglected, from the ratio r of its count to the largest: 1 - r with `paper`,
            (1 - r) / (1 + r) with `released`; by default as in the recipe.
        count_on: Which confident predictions the margin counts: those on the `pseudo_labeled` images (`paper`),
            or those `accepted` in the steps of the previous epoch (`released`); by default as in the recipe.
        independent_adapters: Whether pseudo-labels made during training have their own adapter.
        adapter_width: Hidden units of the adapters that are used in training only.
        strong_views: Number of augmented views of each image that are embedded, if the image encoder is frozen.
        growth: How the pseudo-labeled images grow: `paper` adds the most confident images of every class, `released`
            selects confident ones anew, before older ones; by default as in the recipe.
        growth_limit: Most images of a class with growth = `released`, as a share of an even split.
        grow_every: Number of epochs between two growths of the pseudo-labeled images.
        epochs: Number of epochs of `iterations` steps.
        iterations: Number of steps per epoch.
        train_batch: Number of images of each kind per step.
        learning_rate: Peak learning rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        warmup_epochs: Number of epochs until the peak learning rate is reached.
        gradient_clip: Maximum gradient norm; 0 turns clipping off.
    """

    recipe: Literal["paper", "released"] = "paper"
    tuner: str = "maple"
    concept_alignment: bool = True
    detection: Literal["paper", "robust"] = "paper"
    describe: Literal["auto", "mismatched", "all"] = "mismatched"
    choose: Literal["best", "mean"] = "best"
    class_texts: Literal["names", "aligned"] = "names"
    start_from: Literal["zero_shot", "transductive"] = "zero_shot"
    k: Positive = 16
    tau: Share = 0.85
    margin: bool = True
    margin_scale: NonNegativeFloat = 12.0
    scale_margin: bool | None = None
    tendency: Tendency | None = None
    count_on: Literal["pseudo_labeled", "accepted"] | None = None
    independent_adapters: bool = True
    adapter_width: Positive = 128
    strong_views: Positive = 4
    growth: Literal["paper", "released"] | None = None
    growth_limit: PositiveShare = 0.8
    grow_every: Positive = 5
    epochs: Positive = 50
    iterations: Positive = 50
    train_batch: Positive = 32
    learning_rate: Rate = 0.01
    momentum: Share = 0.9
    weight_decay: NonNegativeFloat = 0.1
    warmup_epochs: NonNegative = 1
    gradient_clip: NonNegativeFloat = 0.0

    def resolved(self) -> CapSettings:
        """Return these settings with those that are not given taken from the recipe."""
        return replace(
            self, **{name: value for name, value in RECIPES[self.recipe].items() if getattr(self, name) is None}
        )


STEPS_X_CLASSES = 250_000
"""Limit on steps times classes of a training that starts from the mixture: 500 steps with 500 classes. The cost of a
step grows with the classes, and the steps change few labels."""
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "paper": {"growth": "paper", "tendency": "paper", "count_on": "pseudo_labeled", "scale_margin": True},
    "released": {"growth": "released", "tendency": "released", "count_on": "accepted", "scale_margin": False},
}

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


class Cap(Method):
    """Concept-adaptive pseudo-labeling."""

    Settings: ClassVar[type[CapSettings]] = CapSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"full": FULL, "quick": QUICK}

    def __init__(self, settings: CapSettings | None = None) -> None:
        super().__init__((settings or CapSettings()).resolved())

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Align concepts, select the first pseudo-labels, then train while they grow."""
        settings: CapSettings = self.settings
        most = max(5, STEPS_X_CLASSES // (settings.epochs * len(task.vocabulary)))
        if settings.start_from == "transductive" and settings.iterations > most:
            context.say(
                f"With {len(task.vocabulary)} classes, an epoch has {most} steps instead of {settings.iterations}."
            )
            return Cap(replace(settings, iterations=most)).adapt(task, backbone, context)
        schedule = self.prepare(task, backbone, context)
        tuner = schedule.objective.tuner
        with nullcontext() if tuner.edits_images else threads_for(0):
            optimization = Optimization.from_settings(settings)
            fit(schedule.objective, schedule, optimization, context.runtime, context.checkpoints)
        context.history.append((settings.epochs, schedule.pseudo_labels))
        if isinstance(schedule, MixtureSchedule):
            if isinstance(tuner, FeatureAdapter):
                tuner.calibrate(context.embed(backbone, task.unlabeled).vectors, schedule.confidence)
            changed = schedule.changed_share()
            context.record(step="mixture", changed=changed)
            context.say(f"CAP changed {changed:.1%} of the labels of the Gaussian mixture that it started from.")
        return tuner

    def prepare(self, task: AdaptationTask, backbone: Backbone, context: Context) -> CapSchedule:
        """Return the training schedule, with the first pseudo-labels and the student before its first step."""
        settings: CapSettings = self.settings
        if len(task.unlabeled) == 0:
            raise InputError(
                f"All {len(task.labeled.labels)} images are labeled, but CAP learns from unlabeled images. "
                "Add unlabeled images, or remove some labels."
            )
        images = context.embed(backbone, task.unlabeled).vectors

        # Section 3.1: describe misleading class names, and select the first pseudo-labels D_PL.
        alignment = self._align_concepts(task, backbone, context)
        mixture = self._mixture(task, backbone, alignment, context)
        first, mixture_labels = self._first_pseudo_labels(task, backbone, alignment, mixture, context)

        # Section 3.3: the student learns from D_PL and from its own confident predictions.
        device = context.runtime.device
        vocabulary = task.vocabulary if settings.class_texts == "names" else alignment.vocabulary
        tuner: Tuner = registry.load("tuners", settings.tuner)(backbone, vocabulary)
        if mixture is not None and isinstance(tuner, FeatureAdapter):
            tuner = tuner.with_mixture(mixture)
        tuner = tuner.to(device)
        source = context.batch_source(tuner, task, settings.strong_views)
        allowed = torch.from_numpy(class_mask(task.target_classes, len(vocabulary)))
        objective = ConfusionObjective(
            tuner, source, allowed, settings.tau, settings.adapter_width, settings.independent_adapters
        ).to(device)
        if settings.growth == "released":
            return ReleasedGrowth(task, objective, first, mixture_labels, len(images), context, settings)
        if mixture is not None:
            return MixtureSchedule(mixture, task, objective, first, mixture_labels, len(images), context, settings)
        return CapSchedule(task, objective, first, mixture_labels, len(images), context, settings)

    def _align_concepts(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Alignment:
        settings: CapSettings = self.settings
        if not settings.concept_alignment:
            return context.align_concepts(task, backbone, "none")
        detection = PAPER_MISMATCH if settings.detection == "paper" else MismatchSettings()
        detection = replace(detection, seed=context.runtime.seed)
        return context.align_concepts(task, backbone, settings.describe, settings.choose, detection)

    def _mixture(
        self, task: AdaptationTask, backbone: Backbone, alignment: Alignment, context: Context
    ) -> MixtureFit | None:
        """Return the mixture from which the student starts, if it does."""
        if self.settings.start_from == "zero_shot":
            return None
        labeled = context.embed(backbone, task.labeled.images)
        return fit_gaussian_mixture(
            context.embed(backbone, task.unlabeled).vectors,
            embed_classes(backbone, alignment.vocabulary),
            backbone.logit_scale,
            labeled=labeled.vectors,
            labels=task.labeled.labels[labeled.image_index],
            is_single=task.labeled.is_single[labeled.image_index],
            allowed=task.target_classes,
        )

    def _first_pseudo_labels(
        self,
        task: AdaptationTask,
        backbone: Backbone,
        alignment: Alignment,
        mixture: MixtureFit | None,
        context: Context,
    ) -> tuple[PseudoLabels, Ints | None]:
        """Return D_PL before any training, and the labels of all images by the mixture, if there is one."""
        settings: CapSettings = self.settings
        images, targets = context.embed(backbone, task.unlabeled).vectors, task.target_classes
        if mixture is None:  # the paper
            # A cosine ranks the images of a few described classes best, a probability those of many.
            ranking: Ranking = "cosine" if settings.describe == "mismatched" else "probability"
            names, described = embed_classes(backbone, task.vocabulary), alignment.vectors(backbone)
            scale = backbone.logit_scale
            first = first_labels(
                images, names, scale, described, k=settings.k, allowed=targets, rank_described_by=ranking
            )
            return first, None
        k = min(settings.k, max(1, len(images) // len(targets)))  # no more than a class can have
        labels = np.asarray(mixture.probabilities.argmax(axis=1), dtype=np.int64)
        return top_k_per_class(mixture.probabilities, k, targets, predicted_only=True), labels
