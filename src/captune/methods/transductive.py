"""A Gaussian mixture on cached embeddings, anchored at the class texts: adapts in seconds, keeps rare classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt

from captune.backbones.base import Backbone
from captune.concepts.mismatch import MismatchSettings
from captune.core.settings import NonNegative, Positive
from captune.data.task import AdaptationTask
from captune.data.vocabulary import Vocabulary
from captune.describers.base import describe_classes
from captune.embeddings.embed import embed_classes
from captune.labeling.gaussian_mixture import Anchoring, fit_gaussian_mixture
from captune.labeling.neighborhood import neighbor_graph
from captune.labeling.pseudo_labels import PseudoLabels
from captune.methods.base import Context, Method
from captune.tuners.base import Tuner
from captune.tuners.gaussian import Gaussian, GaussianSettings

NonNegativeFloat = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class TransductiveSettings:
    """The settings of the transductive method, which is not part of the paper.

    Attributes:
        describe: Which classes are described: `all`, `mismatched` (those with misleading names; detecting them takes
            longer than everything else) or `none`.
        alpha: Number of images that the text of a class counts as; the larger, the closer a class stays to its text.
        text_weight: Weight of the class text in the decision, next to the Gaussian.
        sharpness: Weight of the Gaussian log-density; below 1, since dimensions are not independent.
        labeled_weight: Number of images that the labeled images of a class count as, in addition to themselves.
        iterations: Maximum number of estimation rounds.
        neighbors: Number of nearest images whose probabilities are averaged with an image's own in every round; 0
            turns this off. Time grows with the square of the number of images.
    """

    describe: Literal["all", "mismatched", "none"] = "all"
    alpha: Annotated[float, Gt(0)] = 10.0
    text_weight: NonNegativeFloat = 0.3
    sharpness: NonNegativeFloat = 0.3
    labeled_weight: NonNegativeFloat = 20.0
    iterations: Positive = 20
    neighbors: NonNegative = 0


class Transductive(Method):
    """Fits a mixture to all unlabeled images at once, which then classifies new images too."""

    Settings: ClassVar[type[TransductiveSettings]] = TransductiveSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Describe the classes, fit a Gaussian mixture anchored at their texts, and return it as a classifier."""
        settings: TransductiveSettings = self.settings
        unlabeled, labeled = context.embed(backbone, task.unlabeled), context.embed(backbone, task.labeled.images)
        vocabulary = self._described(task, backbone, context)
        tuner = Gaussian(backbone, vocabulary, GaussianSettings(settings.text_weight, settings.sharpness))
        found = fit_gaussian_mixture(
            unlabeled.vectors,
            tuner.class_embeddings().cpu().numpy(),
            backbone.logit_scale,
            Anchoring(
                settings.alpha, settings.text_weight, settings.sharpness, settings.iterations, settings.labeled_weight
            ),
            labeled=labeled.vectors,
            labels=task.labeled.labels[labeled.image_index],
            allowed=task.target_classes,
            graph=neighbor_graph(unlabeled.vectors, settings.neighbors) if settings.neighbors else None,
        )
        tuner.set_mixture(found.mixture)
        labels, confidence = found.probabilities.argmax(axis=1), found.probabilities.max(axis=1)
        everyone = np.arange(len(labels))
        made = PseudoLabels.create(everyone, labels, confidence, len(vocabulary), round_number=found.rounds)
        context.history.append((found.rounds, made))
        context.record(step="clustering", rounds=found.rounds, predicted=made.counts().tolist())
        return tuner.to(context.runtime.device)

    def _described(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Vocabulary:
        names, vocabulary = task.vocabulary.names, task.vocabulary
        if self.settings.describe == "mismatched":
            texts, detection = embed_classes(backbone, vocabulary), MismatchSettings(seed=context.runtime.seed)
            found = context.align_concepts(task, backbone, texts, detection)
            return vocabulary.with_descriptions(found.sentences)
        if self.settings.describe == "none":
            return vocabulary
        answers = describe_classes(context.describer, [names[c] for c in task.target_classes], phrase=context.domain)
        for name, problem in answers.problems.items():
            context.say(f"{name}: {problem}")
        own = {name: vocabulary.texts(names.index(name)) for name in answers.found}
        return vocabulary.with_descriptions(
            {names.index(name): (*own[name], *sentences) for name, sentences in answers.found.items()}
        )
