"""The method that predicts held-out labels best; with few labels, the transductive one and its health check."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge

from captune.backbones.base import Backbone
from captune.core import registry
from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError
from captune.core.settings import build
from captune.data.task import AdaptationTask, LabeledImages
from captune.methods.base import Context, Method
from captune.tuners.base import Tuner

DEFAULT = "transductive"


@dataclass(frozen=True)
class AutoSettings:
    """The settings of the choice between methods.

    Attributes:
        candidates: Methods to choose from, in the order of preference.
        folds: Number of folds of the labels; each fold is predicted by methods that do not see it.
        fewest_labels: Minimum number of labels for a comparison of methods.
    """

    candidates: tuple[str, ...] = (DEFAULT, "zero_shot", "transclip")
    folds: Annotated[int, Ge(2)] = 4
    fewest_labels: Annotated[int, Ge(2)] = 40


class Auto(Method):
    """Chooses a method by cross-validation on the labels, and says which and why."""

    Settings: ClassVar[type[AutoSettings]] = AutoSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Compare the candidates on held-out labels and return the best one, adapted with all labels."""
        settings = self.settings
        if not settings.candidates or "auto" in settings.candidates:
            raise InputError(f"candidates is {list(settings.candidates)}, expected other methods such as {DEFAULT!r}.")
        chosen, n_labels = settings.candidates[0], len(task.labeled)
        if n_labels < settings.fewest_labels:
            context.say(
                f"Method {chosen}: {n_labels} labels are too few to compare methods (fewest_labels="
                f"{settings.fewest_labels}); without labels, the health check decides whether it is kept."
            )
            context.record(step="choice", method=chosen, n_labels=n_labels, accuracy={})
            return _make(chosen).adapt(task, backbone, context)
        accuracy = {name: self._cross_validate(name, task, backbone, context) for name in settings.candidates}
        chosen = max(accuracy, key=lambda name: accuracy[name])  # the first of equals
        listed = ", ".join(f"{name} {value:.1%}" for name, value in accuracy.items())
        context.say(f"Method {chosen}, by accuracy on held-out parts of the {n_labels} labels: {listed}.")
        context.record(step="choice", method=chosen, n_labels=n_labels, accuracy=accuracy)
        return _make(chosen).adapt(task, backbone, context)

    def _cross_validate(self, name: str, task: AdaptationTask, backbone: Backbone, context: Context) -> float:
        """Return the share of labels that a method predicts without knowing them."""
        known = context.embed(backbone, task.labeled.images)
        labels = task.labeled.labels[known.image_index]
        parts = np.random.default_rng(context.runtime.seed).permutation(len(labels)) % self.settings.folds
        n_correct = 0
        for part in range(self.settings.folds):
            held_out, others = np.flatnonzero(parts == part), np.flatnonzero(parts != part)
            if not len(held_out):
                continue
            trial = dataclasses.replace(context, rounds=[], history=[], arrays={}, checkpoints=None)
            rows = known.image_index[others]
            labeled = LabeledImages(task.labeled.images.subset(rows), labels[others], task.labeled.is_single[rows])
            less = dataclasses.replace(task, labeled=labeled)
            tuner = _make(name).adapt(less, backbone, trial)
            predicted = _predict(tuner, known.vectors[held_out])
            n_correct += int(np.count_nonzero(predicted == labels[held_out]))
        return n_correct / max(1, len(labels))


def _make(name: str) -> Method:
    """Return a method with the settings of its preset `quick`, if it has one."""
    method_class: type[Method] = registry.load("methods", name)
    own = {field.name for field in dataclasses.fields(method_class.Settings)}
    quick = {key: value for key, value in method_class.presets.get("quick", {}).items() if key in own}
    return method_class(build(method_class.Settings, quick, "settings"))


@torch.inference_mode()
def _predict(tuner: Tuner, vectors: Floats) -> Ints:
    """Return the predicted classes of embeddings of the backbone."""
    if tuner.edits_images:
        raise InputError("Methods that change the image encoder take too long to be compared. Choose other candidates.")
    images = tuner.refine(torch.from_numpy(vectors).to(tuner.backbone.device))
    return np.asarray(tuner.logits(images, tuner.class_embeddings()).argmax(dim=1).cpu().numpy(), dtype=np.int64)
