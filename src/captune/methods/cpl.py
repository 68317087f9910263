"""CPL: rounds of training on sets of candidate classes instead of single pseudo-labels (Zhang et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from captune.backbones.base import Backbone
from captune.core.arrays import Floats, Ints
from captune.core.settings import NonNegative, NonNegativeFloat, Positive, Rate, Share
from captune.data.task import AdaptationTask
from captune.labeling.pseudo_labels import PseudoLabels
from captune.labeling.selection import balanced_pools, candidate_sets, growing_k, pool_capacities
from captune.methods._few_labels import PRESETS_OF_ROUNDS, FewLabelSettings, FewLabelTraining
from captune.methods.base import Context, Method
from captune.tuners.base import Tuner

LABELED_BATCH = (8, 256)
"""The minimum and maximum number of labeled images per step."""


@dataclass(frozen=True)
class CplSettings(FewLabelSettings):
    """The published settings; alpha, beta and g are middle values of those published for each dataset.

    Attributes:
        rounds: Number of rounds in which candidates are selected and new prompts are trained.
        alpha: The candidates of an image are its most probable classes, until their sum exceeds this quantile of all
            images' highest probabilities.
        beta: A class is a candidate only for images whose probability in it is at least this quantile over all
            images; by default 1 - g / classes.
        g: How many times its even share of the images a class may have, if beta is not set.
    """

    epochs: Positive = 50
    train_batch: Positive = 64
    learning_rate: Rate = 0.02
    weight_decay: NonNegativeFloat = 0.05
    warmup_epochs: NonNegative = 2
    gradient_clip: NonNegativeFloat = 0.8
    rounds: Positive = 10
    alpha: Share = 0.75
    beta: Share | None = None
    g: Rate = 2.0


class Cpl(Method):
    """Candidate pseudo-label learning."""

    Settings = CplSettings
    presets = PRESETS_OF_ROUNDS

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Select candidates with the previous student, assign images to balanced pools, and learn from the sets."""
        training, rounds = FewLabelTraining(task, backbone, context, self.settings), self.settings.rounds
        probabilities = zero_shot = training.zero_shot()
        fills = None
        for number in training.parts(rounds):
            k = growing_k(number, rounds, len(probabilities), len(task.target_classes))
            labels = self._select(probabilities, pool_capacities(k, fills), task)
            # Candidates are weighted by their probability in the first round, and equally later.
            prior = zero_shot if number == 1 else None
            fills = training.learn(labels, number, prior=prior, labeled_batch=LABELED_BATCH).counts()
            if number < rounds:
                probabilities = training.predict()
        return training.tuner

    def _select(self, probabilities: Floats, k: int | Ints, task: AdaptationTask) -> PseudoLabels:
        settings: CplSettings = self.settings
        beta = max(0.0, 1.0 - settings.g / len(task.target_classes)) if settings.beta is None else settings.beta
        candidates = candidate_sets(probabilities, settings.alpha, beta, task.target_classes)
        if len(candidates) and not candidates.any():  # no candidate passes both rules: use the most probable classes
            candidates[np.arange(len(candidates)), probabilities.argmax(axis=1)] = True
        return balanced_pools(probabilities, candidates, k)
