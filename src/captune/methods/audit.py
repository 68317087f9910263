"""Zero-shot classification that also finds misleading class names and the first pseudo-labels, without training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from captune.backbones.base import Backbone
from captune.concepts.alignment import Choice, Scope
from captune.concepts.mismatch import MismatchSettings
from captune.core.arrays import Floats
from captune.core.settings import Positive, PositiveShare
from captune.data.task import AdaptationTask
from captune.embeddings.embed import embed_classes
from captune.labeling.selection import first_labels
from captune.methods.base import Context, Method
from captune.tuners.base import Tuner
from captune.tuners.frozen import Frozen

BY_NAME, BY_DESCRIPTION = 0, 1
"""The entries in the history of pseudo-labels, in place of epochs."""


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit; the paper runs the detection once, with threshold_share 0.1.

    Attributes:
        threshold_share: Stop a detection run when fewer than this share of the classes is left.
        runs: Number of detection runs, each with different random clusters.
        min_frequency: A class name is misleading if at least this share of the runs finds it.
        describe: Which classes to describe: those with misleading names, or all.
        choose: Whether a class is represented by its best description, or by the mean of all.
        k: Number of images per class that would be pseudo-labeled.
    """

    threshold_share: PositiveShare = MismatchSettings.threshold_share
    runs: Positive = MismatchSettings.runs
    min_frequency: PositiveShare = MismatchSettings.min_frequency
    describe: Scope = "mismatched"
    choose: Choice = "mean"
    k: Positive = 16


class Audit(Method):
    """What a model makes of images and names before anything is trained."""

    Settings: ClassVar[type[AuditSettings]] = AuditSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Record misleading names and the first pseudo-labels by name and by description; nothing is adapted."""
        own: AuditSettings = self.settings
        texts = embed_classes(backbone, task.vocabulary)
        detection = MismatchSettings(
            threshold_share=own.threshold_share,
            runs=own.runs,
            min_frequency=own.min_frequency,
            seed=context.runtime.seed,
        )
        found = context.align_concepts(task, backbone, own.describe, own.choose, detection)
        images, scale = context.embed(backbone, task.unlabeled).vectors, backbone.logit_scale
        entries: Mapping[int, Mapping[int, Floats]] = {BY_NAME: {}, BY_DESCRIPTION: found.vectors(backbone)}
        for entry, described in entries.items():
            labels = first_labels(images, texts, scale, described, k=own.k, allowed=task.target_classes)
            context.history.append((entry, labels))
        return Frozen(backbone, task.vocabulary)
