"""A Gaussian mixture on cached embeddings, next to the class texts: adapts in seconds, keeps rare classes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from captune.backbones.base import Backbone
from captune.concepts.mismatch import MismatchSettings
from captune.core.settings import NonNegative, Positive
from captune.data.task import AdaptationTask
from captune.labeling.pseudo_labels import PseudoLabels
from captune.methods.base import Context, Method
from captune.mixture.gaussian_mixture import MixtureSettings, fit_gaussian_mixture
from captune.tuners.base import Tuner
from captune.tuners.gaussian import Gaussian

NonNegativeFloat = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class TransductiveSettings:
    """The settings of the transductive method, which is not part of the paper.

    Attributes:
        describe: Which classes are described: `auto` (all, if descriptions separate the images better than names),
            `all`, `mismatched` (those with misleading names; detecting them takes longest) or `none`.
        image_weight: Spread of the mixture's scores over the classes as a multiple of the text scores' spread, in the
            limit of many images per class name.
        half_weight_at: Images per class name at which half of `image_weight` is used.
        shrinkage: Share of the covariance that is replaced by its mean variance.
        alpha: Number of images that the zero-shot estimate of a class counts as.
        label_shift_steps: Steps of the label-shift estimate that moves images away from class names without images.
        even_out: Whether class sizes are evened out as far as wrong labels explain that they differ.
        labeled_weight: Number of images that each labeled image counts as.
        iterations: Maximum number of estimation rounds before class sizes are evened out, and after.
    """

    describe: Literal["auto", "all", "mismatched", "none"] = "auto"
    image_weight: NonNegativeFloat = MixtureSettings.image_weight
    half_weight_at: NonNegativeFloat = MixtureSettings.half_weight_at
    shrinkage: Annotated[float, Gt(0), Le(1)] = MixtureSettings.shrinkage
    alpha: Annotated[float, Gt(0)] = MixtureSettings.alpha
    label_shift_steps: NonNegative = MixtureSettings.label_shift_steps
    even_out: bool = MixtureSettings.even_out
    labeled_weight: NonNegativeFloat = MixtureSettings.labeled_weight
    iterations: Positive = MixtureSettings.iterations


class Transductive(Method):
    """Fits a mixture to all unlabeled images at once, which then classifies new images too."""

    Settings: ClassVar[type[TransductiveSettings]] = TransductiveSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Describe the classes, fit a Gaussian mixture next to their texts, and return it as a classifier."""
        unlabeled, labeled = context.embed(backbone, task.unlabeled), context.embed(backbone, task.labeled.images)
        describe = self.settings.describe
        detection = MismatchSettings(seed=context.runtime.seed) if describe == "mismatched" else None
        vocabulary = context.align_concepts(task, backbone, describe, detection=detection).vocabulary
        tuner = Gaussian(backbone, vocabulary)
        settings = asdict(self.settings)
        del settings["describe"]
        found = fit_gaussian_mixture(
            unlabeled.vectors,
            tuner.class_embeddings().cpu().numpy(),
            backbone.logit_scale,
            MixtureSettings(**settings),
            labeled=labeled.vectors,
            labels=task.labeled.labels[labeled.image_index],
            is_single=task.labeled.is_single[labeled.image_index],
            allowed=task.target_classes,
        )
        tuner.set_mixture(found)
        labels, confidence = found.probabilities.argmax(axis=1), found.probabilities.max(axis=1)
        everyone = np.arange(len(labels))
        made = PseudoLabels.create(everyone, labels, confidence, len(vocabulary), round_number=found.rounds)
        context.history.append((found.rounds, made))
        context.record(step="clustering", rounds=found.rounds, predicted=made.counts().tolist())
        return tuner.to(context.runtime.device)
