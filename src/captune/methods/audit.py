"""Zero-shot classification that also finds misleading class names and the first pseudo-labels, without training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from captune.backbones.base import Backbone
from captune.concepts.alignment import Choice, Scope
from captune.concepts.mismatch import DETECTIONS, Detection
from captune.core.arrays import Floats
from captune.core.settings import Positive
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
    """Settings of an audit.

    Attributes:
        detection: `robust` runs Algorithm 1 ten times with a large t; `paper` once with t = ceil(C/10).
        describe: Which classes to describe: those with misleading names, or all.
        choose: Whether a class is represented by its best description, or by the mean of all.
        k: Number of images per class that would be pseudo-labeled.
    """

    detection: Detection = "robust"
    describe: Scope = "mismatched"
    choose: Choice = "mean"
    k: Positive = 16


class Audit(Method):
    """What a model makes of images and names before anything is trained."""

    Settings = AuditSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Record misleading names and the first pseudo-labels by name and by description; nothing is adapted."""
        own: AuditSettings = self.settings
        texts = embed_classes(backbone, task.vocabulary)
        detection = replace(DETECTIONS[own.detection], seed=context.runtime.seed)
        found = context.align_concepts(task, backbone, own.describe, own.choose, detection)
        images, scale = context.embed(backbone, task.unlabeled).vectors, backbone.logit_scale
        entries: Mapping[int, Mapping[int, Floats]] = {BY_NAME: {}, BY_DESCRIPTION: found.vectors(backbone)}
        for entry, described in entries.items():
            labels = first_labels(images, texts, scale, described, k=own.k, allowed=task.target_classes)
            context.history.append((entry, labels))
        return Frozen(backbone, task.vocabulary)
