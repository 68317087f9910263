"""GRIP: prompts trained anew in rounds, on ever more pseudo-labels of every class (Menghini et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from captune.backbones.base import Backbone
from captune.core.settings import Positive
from captune.data.task import AdaptationTask
from captune.labeling.selection import growing_k, top_k_per_class
from captune.methods._few_labels import PRESETS_OF_ROUNDS, FewLabelSettings, FewLabelTraining
from captune.methods.base import Context, Method
from captune.tuners.base import Tuner


@dataclass(frozen=True)
class GripSettings(FewLabelSettings):
    """The published settings.

    Attributes:
        rounds: Number of rounds in which the pseudo-labels grow and new prompts are trained.
    """

    rounds: Positive = 10


class Grip(Method):
    """Grow and refine iteratively pseudo-labels."""

    Settings = GripSettings
    presets = PRESETS_OF_ROUNDS

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Label more images in every round with the previous student; the last student is the result."""
        training, rounds = FewLabelTraining(task, backbone, context, self.settings), self.settings.rounds
        probabilities = training.zero_shot()
        for number in training.parts(rounds):
            k = growing_k(number, rounds, len(probabilities), len(task.target_classes))
            training.learn(top_k_per_class(probabilities, k, task.target_classes), number)
            if number < rounds:
                probabilities = training.predict()
        return training.tuner
