"""Choose a method: the one that predicts held-out labels best; without labels, the mixture, or CAP on a GPU."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from captune.backbones.base import Backbone
from captune.core import registry
from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError
from captune.core.settings import build
from captune.core.text import option
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
        without_labels: Method with too few labels for a comparison: `transductive` takes seconds, `cap` trains through
            the image encoder and is the choice on a GPU.
    """

    candidates: tuple[str, ...] = ("transductive", "zero_shot", "transclip")
    without_labels: Literal["transductive", "cap"] = "transductive"


PRESETS = {"full": {"without_labels": "cap"}, "quick": {}}


class Auto(Method):
    """Chooses a method and says which and why."""

    Settings = AutoSettings
    presets = PRESETS

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Compare the candidates on held-out labels if there are enough, and return the chosen one, adapted."""
        settings: AutoSettings = self.settings
        if not settings.candidates or "auto" in settings.candidates:
            raise InputError(f"candidates is {list(settings.candidates)}, expected other methods such as 'zero_shot'.")
        n_labels, accuracy = len(task.labeled), {}
        if n_labels >= FEWEST_LABELS:
            accuracy = {name: self._cross_validate(name, task, backbone, context) for name in settings.candidates}
            chosen, preset = max(accuracy, key=lambda name: accuracy[name]), "quick"  # the first of equals
            listed = ", ".join(f"{name} {value:.1%}" for name, value in accuracy.items())
            context.say(f"Method {chosen}, by accuracy on held-out parts of the {n_labels} labels: {listed}.")
        else:
            chosen, preset = self._without_labels(n_labels, backbone, context)
        context.record(step="choice", method=chosen, preset=preset, n_labels=n_labels, accuracy=accuracy)
        return _make(chosen, preset).adapt(task, backbone, context)

    def _without_labels(self, n_labels: int, backbone: Backbone, context: Context) -> tuple[str, str]:
        """Return method and preset if there are too few labels to compare methods, and say why these."""
        few = f"{n_labels} labels are too few to compare methods" if n_labels else "there are no labels"
        has_prompts = registry.load("tuners", "maple").prompted_towers <= backbone.prompted_sides()
        if self.settings.without_labels == "cap" and has_prompts:
            context.say(
                f"Method cap, preset full: {few}, and a GPU can train through the image encoder. "
                f"In seconds: {option('method', 'transductive')}."
            )
            return "cap", "full"
        why = "this backbone takes no prompts" if self.settings.without_labels == "cap" else "it takes seconds"
        kept = "" if n_labels else " The health check decides whether it is kept."
        context.say(f"Method transductive: {few}, and {why} without a GPU.{kept}")
        return "transductive", "quick"

    def _cross_validate(self, name: str, task: AdaptationTask, backbone: Backbone, context: Context) -> float:
        """Return the share of labels that a method predicts without knowing them."""
        known = context.embed(backbone, task.labeled.images)
        labels = task.labeled.labels[known.image_index]
        parts = np.random.default_rng(context.runtime.seed).permutation(len(labels)) % N_FOLDS
        n_correct = 0
        for part in range(N_FOLDS):
            held_out, others = np.flatnonzero(parts == part), np.flatnonzero(parts != part)
            trial = dataclasses.replace(context, rounds=[], history=[], checkpoints=None)
            rows = known.image_index[others]
            labeled = LabeledImages(task.labeled.images.subset(rows), labels[others], task.labeled.is_single[rows])
            less = dataclasses.replace(task, labeled=labeled)
            tuner = _make(name, "quick").adapt(less, backbone, trial)
            predicted = _predict(tuner, known.vectors[held_out])
            n_correct += int(np.count_nonzero(predicted == labels[held_out]))
        return n_correct / max(1, len(labels))


def _make(name: str, preset: str) -> Method:
    """Return a method with the settings of a preset, if it has it."""
    method_class: type[Method] = registry.load("methods", name)
    own = {field.name for field in dataclasses.fields(method_class.Settings)}
    chosen = {key: value for key, value in method_class.presets.get(preset, {}).items() if key in own}
    return method_class(build(method_class.Settings, chosen, "settings"))


@torch.inference_mode()
def _predict(tuner: Tuner, vectors: Floats) -> Ints:
    """Return the predicted classes of embeddings of the backbone."""
    if tuner.edits_images:
        raise InputError("Methods that change the image encoder take too long to be compared. Choose other candidates.")
    images = tuner.refine(torch.from_numpy(vectors).to(tuner.backbone.device))
    return np.asarray(tuner.logits(images, tuner.class_embeddings()).argmax(dim=1).cpu().numpy(), dtype=np.int64)
