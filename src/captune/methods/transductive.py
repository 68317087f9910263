"""A Gaussian mixture on cached embeddings, next to the class texts: adapts in seconds, keeps rare classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from captune.backbones.base import Backbone
from captune.concepts.alignment import Scope
from captune.concepts.mismatch import MismatchSettings
from captune.data.task import AdaptationTask
from captune.labeling.pseudo_labels import PseudoLabels
from captune.methods.base import Context, Method
from captune.mixture.gaussian_mixture import MixtureSettings
from captune.tuners.base import Tuner
from captune.tuners.gaussian import Gaussian


@dataclass(frozen=True)
class TransductiveSettings(MixtureSettings):
    """The settings of the transductive method, which is not part of the paper.

    Attributes:
        describe: Which classes are described: `auto` (all, if descriptions separate the images better than names),
            `all`, `mismatched` (those with misleading names; detecting them takes longest), `confused` (how classes
            that are confused differ, if that separates the images better) or `none`.
    """

    describe: Scope = "auto"


class Transductive(Method):
    """Fits a mixture to all unlabeled images at once, which then classifies new images too."""

    Settings = TransductiveSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Describe the classes, fit a Gaussian mixture next to their texts, and return it as a classifier."""
        describe = self.settings.describe
        detection = MismatchSettings(seed=context.runtime.seed) if describe == "mismatched" else None
        vocabulary = context.align_concepts(task, backbone, describe, detection=detection).vocabulary
        tuner = Gaussian(backbone, vocabulary)
        found = context.fit_mixture(task, backbone, tuner.class_embeddings().cpu().numpy(), self.settings)
        tuner.set_mixture(found)
        labels, confidence = found.probabilities.argmax(axis=1), found.probabilities.max(axis=1)
        everyone = np.arange(len(labels))
        made = PseudoLabels.create(everyone, labels, confidence, len(vocabulary), round_number=found.rounds)
        context.history.append((found.rounds, made))
        absent = [vocabulary.names[c] for c in np.flatnonzero(found.is_absent)]
        context.record(step="clustering", rounds=found.rounds, predicted=made.counts().tolist(), absent=absent)
        return tuner.to(context.runtime.device)
