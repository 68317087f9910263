"""FPL: prompts learned from the k most confident images of every class (Menghini et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from captune.backbones.base import Backbone
from captune.core.settings import Positive
from captune.data.task import AdaptationTask
from captune.labeling.selection import top_k_per_class
from captune.methods._few_labels import PRESETS, FewLabelSettings, FewLabelTraining
from captune.methods.base import Context, Method
from captune.tuners.base import Tuner


@dataclass(frozen=True)
class FplSettings(FewLabelSettings):
    """The published settings.

    Attributes:
        k: Number of images per class that are pseudo-labeled.
    """

    k: Positive = 16


class Fpl(Method):
    """Few pseudo-labels."""

    Settings = FplSettings
    presets = PRESETS

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Pseudo-label the k most probable images of each class, each image once, and learn from them."""
        training = FewLabelTraining(task, backbone, context, self.settings)
        training.learn(top_k_per_class(training.zero_shot(), self.settings.k, task.target_classes))
        return training.tuner
