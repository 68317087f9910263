"""UPL: prompts learned from the most confident predictions of each class, averaged over seeds (Huang et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from captune.backbones.base import Backbone
from captune.core.errors import InputError
from captune.core.settings import NonNegative, NonNegativeFloat, Positive, Rate
from captune.core.text import option
from captune.data.task import AdaptationTask
from captune.labeling.selection import top_k_per_class
from captune.methods._few_labels import QUICK, FewLabelSettings, FewLabelTraining
from captune.methods.base import Context, Method
from captune.tuners.base import Tuner
from captune.tuners.text_prompts import TextPrompts


@dataclass(frozen=True)
class UplSettings(FewLabelSettings):
    """The published settings.

    Attributes:
        k: Number of images per class that are pseudo-labeled.
        strong_views: Number of random crops of each pseudo-labeled image that are embedded, if the image encoder is
            frozen (otherwise, each epoch has new crops); 0 trains on the uncropped images.
        ensemble: Number of trainings from different random prompts whose class embeddings are averaged (only with
            the tuner text_prompts).
    """

    tuner_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    epochs: Positive = 50
    train_batch: Positive = 32
    learning_rate: Rate = 0.002
    weight_decay: NonNegativeFloat = 0.0005
    warmup_epochs: NonNegative = 1
    k: Positive = 16
    strong_views: NonNegative = 50
    ensemble: Positive = 16


PRESETS = {"full": {}, "quick": {**QUICK, "strong_views": 0, "ensemble": 1}}


class Upl(Method):
    """Unsupervised prompt learning."""

    Settings = UplSettings
    presets = PRESETS

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Pseudo-label the most confident predictions of each class, and learn from them several times."""
        settings: UplSettings = self.settings
        if settings.ensemble > 1 and settings.tuner != "text_prompts":
            raise InputError(
                f"ensemble = {settings.ensemble}: only the tuner text_prompts averages. Pass {option('ensemble', 1)}."
            )
        training = FewLabelTraining(task, backbone, context, settings)
        labels = top_k_per_class(training.zero_shot(), settings.k, task.target_classes, predicted_only=True)
        for member in training.parts(settings.ensemble):
            training.learn(labels, member, strong_views=settings.strong_views)
            if isinstance(training.tuner, TextPrompts):
                training.kept[f"{member:03d}"] = training.tuner.context.detach().clone()
        if settings.ensemble == 1:
            return training.tuner
        members = [training.kept[name] for name in sorted(training.kept)]
        full_stop = training.tuner.settings.full_stop
        return TextPrompts.joined(backbone, task.vocabulary, torch.cat(members), full_stop).to(context.runtime.device)
