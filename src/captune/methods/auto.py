"""Choose a method: the one that predicts held-out labels best; without labels, the Gaussian mixture."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from captune.backbones.base import Backbone
from captune.core import registry
from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError
from captune.core.settings import build
from captune.data.task import AdaptationTask, LabeledImages
from captune.methods.base import Context, Method
from captune.tuners.base import Tuner

FEWEST_LABELS, N_FOLDS = 40, 4
"""Number of labels from which methods are compared, and of their folds: each is predicted by methods without it."""


@dataclass(frozen=True)
class AutoSettings:
    """The settings of the choice between methods.

    Attributes:
        candidates: Methods to choose from, in the order of preference.
    """

    candidates: tuple[str, ...] = ("transductive", "zero_shot", "transclip")


class Auto(Method):
    """Chooses a method and says which and why."""

    Settings = AutoSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Compare the candidates on held-out labels if there are enough, and return the chosen one, adapted."""
        settings: AutoSettings = self.settings
        if not settings.candidates or "auto" in settings.candidates:
            raise InputError(f"candidates is {list(settings.candidates)}, expected other methods such as 'zero_shot'.")
        n_labels, accuracy = len(task.labeled), {}
        if n_labels >= FEWEST_LABELS:
            accuracy = {name: self._cross_validate(name, task, backbone, context) for name in settings.candidates}
            chosen = max(accuracy, key=lambda name: accuracy[name])  # the first of equals
            listed = ", ".join(f"{name} {value:.1%}" for name, value in accuracy.items())
            context.say(f"Method {chosen}, by accuracy on held-out parts of the {n_labels} labels: {listed}.")
        else:
            chosen = "transductive"
            few = f"{n_labels} labels are too few to compare methods" if n_labels else "there are no labels"
            kept = "" if n_labels else " The health check decides whether it is kept."
            context.say(f"Method transductive: {few}, and it takes seconds.{kept}")
        context.record(step="choice", method=chosen, n_labels=n_labels, accuracy=accuracy)
        return _make(chosen).adapt(task, backbone, context)

    def _cross_validate(self, name: str, task: AdaptationTask, backbone: Backbone, context: Context) -> float:
        """Return the share of labels that a method predicts without knowing them."""
        known, labels = context.labeled_vectors(task, backbone)
        parts = np.random.default_rng(context.runtime.seed).permutation(len(labels)) % N_FOLDS
        n_correct = 0
        for part in range(N_FOLDS):
            held_out, others = np.flatnonzero(parts == part), np.flatnonzero(parts != part)
            trial = replace(context, rounds=[], history=[], checkpoints=None)
            images, is_single = task.labeled.images.subset(others), task.labeled.is_single[others]
            less = replace(task, labeled=LabeledImages(images, labels[others], is_single))
            predicted = _predict(_make(name).adapt(less, backbone, trial), known[held_out])
            n_correct += int(np.count_nonzero(predicted == labels[held_out]))
        return n_correct / len(labels)


def _make(name: str) -> Method:
    """Return a method with the settings of its preset `quick`, if it has one."""
    method_class: type[Method] = registry.load("methods", name)
    return method_class(build(method_class.Settings, method_class.presets.get("quick", {}), "settings"))


@torch.inference_mode()
def _predict(tuner: Tuner, vectors: Floats) -> Ints:
    """Return the predicted classes of embeddings of the backbone."""
    if tuner.edits_images:
        raise InputError("Methods that change the image encoder take too long to be compared. Choose other candidates.")
    images = tuner.refine(torch.from_numpy(vectors).to(tuner.backbone.device))
    return np.asarray(tuner.logits(images, tuner.class_embeddings()).argmax(dim=1).cpu().numpy(), dtype=np.int64)
