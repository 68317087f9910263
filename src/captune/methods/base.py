"""What a method is: from a task and a backbone to a tuned student, read like the paper's algorithm box."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone
from captune.concepts.alignment import Alignment, Choice, Scope, align_concepts
from captune.concepts.mismatch import UNCOUNTABLE, MismatchSettings
from captune.core import distributed
from captune.core.arrays import Floats, Ints, Positions, canonical_order, take_rows
from captune.core.errors import InputError
from captune.core.runtime import Runtime, threads_for
from captune.core.text import option
from captune.data.images import ImageCollection, no_usable_image
from captune.data.task import AdaptationTask, LabeledImages
from captune.data.views import StrongView
from captune.describers.base import Describer
from captune.describers.none import NoDescriber
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import EmbeddedImages, embed_images
from captune.labeling.pseudo_labels import PseudoLabels
from captune.mixture.gaussian_mixture import MixtureFit, MixtureSettings, fit_gaussian_mixture
from captune.training.batch_sources import BatchSource, EmbeddingSource, PixelSource
from captune.training.checkpoint import CheckpointFolder, with_prefix
from captune.training.loop import Optimization, Schedule, fit
from captune.tuners.base import NoSettings, Tuner


@dataclass(frozen=True)
class Context:
    """What a method may use besides its task; it hides files, devices and processes."""

    runtime: Runtime
    cache: EmbeddingCache
    batch_size: int = 32
    describer: Describer = field(default_factory=NoDescriber)
    domain: str = "{}"
    checkpoints: CheckpointFolder | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
    """What happened in each round or epoch, as JSON facts."""
    history: list[tuple[int, PseudoLabels]] = field(default_factory=list)
    """Pseudo-labels after some epochs; `image_index` counts the readable unlabeled images."""
    fit_scores: dict[bytes, Floats] = field(default_factory=dict)
    """How well the images fit class texts, whatever people say, by these texts; adapting again does not compute it."""
    _embedded: dict[tuple[ImageCollection, int], EmbeddedImages] = field(default_factory=dict)

    def embed(self, backbone: Backbone, images: ImageCollection, title: str = "Embedding images") -> EmbeddedImages:
        """Return the embeddings of a collection, computed at most once in a run."""
        key = (images, id(backbone))
        if key not in self._embedded:
            found = embed_images(backbone, images, self.cache, self.runtime, self.batch_size, title=title)
            if len(images) and not len(found.image_index):
                raise InputError(no_usable_image(images, found.skipped))
            self._embedded[key] = found
        return self._embedded[key]

    def in_canonical_order(self, task: AdaptationTask, backbone: Backbone) -> AdaptationTask:
        """Return a task whose readable images are sorted by their embeddings.

        Halves, samples, batches and ties of a method are then the same whatever order and names the files have.
        """

        def ordered(images: ImageCollection, ids: Ints | None = None) -> tuple[ImageCollection, Ints]:
            found = self.embed(backbone, images)
            # Copies of an image may have different labels, which then decide the order.
            rows = np.arange(len(found.vectors)) if ids is None else np.argsort(ids[found.image_index], kind="stable")
            rows = rows[canonical_order(found.vectors[rows])]
            readable, vectors = images.subset(found.image_index[rows]), take_rows(found.vectors, rows)
            self._embedded[readable, id(backbone)] = EmbeddedImages(Positions(np.arange(len(rows))), vectors, {})
            return readable, found.image_index[rows]

        unlabeled, _ = ordered(task.unlabeled)
        images, chosen = ordered(task.labeled.images, task.labeled.labels)
        labeled = LabeledImages(images, task.labeled.labels[chosen], task.labeled.is_single[chosen])
        return replace(task, unlabeled=unlabeled, labeled=labeled, unknown=ordered(task.unknown)[0])

    def align_concepts(
        self,
        task: AdaptationTask,
        backbone: Backbone,
        describe: Scope = "mismatched",
        choose: Choice = "best",
        detection: MismatchSettings | None = None,
    ) -> Alignment:
        """Decide which text represents each class, on the first process, and report what was found."""
        if describe == "none" and detection is None:
            return Alignment(task.vocabulary, np.empty(0, dtype=np.int64))
        choices = f"{option('describer', 'file:descriptions.yaml')} or {option('describer', 'openai:gpt-4o-mini')}"
        if describe == "all" and isinstance(self.describer, NoDescriber):
            raise InputError(
                f"describe = 'all' needs descriptions, but the describer is 'none'. Choose one: {choices}."
            )

        def align() -> distributed.Payload:
            found = align_concepts(
                self.embed(backbone, task.unlabeled).vectors,
                task.vocabulary,
                backbone,
                self.describer,
                describe=describe,
                choose=choose,
                detection=detection,
                labeled=self.labeled_vectors(task, backbone),
                classes=task.target_classes,
                phrase=self.domain,
                progress=self.runtime.progress,
            )
            self._report(found, choices)
            return {}, [found.described.tolist(), list(found.vocabulary.descriptions.items())]

        _, (described, sentences) = distributed.from_first(align)
        vocabulary = task.vocabulary.with_descriptions({c: tuple(words) for c, words in sentences})
        return Alignment(vocabulary, np.asarray(described, dtype=np.int64))

    def _report(self, found: Alignment, choices: str) -> None:
        names, findings, descriptions = found.vocabulary.names, found.findings, found.descriptions
        for name, problem in descriptions.problems.items():
            self.say(f"{name}: {problem}")
        if found.reason:
            self.say(found.reason)
        facts: dict[str, Any] = {"problems": dict(descriptions.problems)}
        if findings is None:
            if descriptions.found:
                self.record(step="descriptions", descriptions=descriptions.found, **facts)
            return
        mismatched = [names[c] for c in findings.mismatched]
        if findings.runs:
            self.say(f"Misleading class names: {', '.join(mismatched) or 'none found'}.")
        else:
            self.say(f"Misleading class names are not looked for: {UNCOUNTABLE}.")
        if n_missing := len(np.setdiff1d(findings.mismatched, found.described)):
            self.say(
                f"{n_missing} of them have no description and keep their name. A description of what such images show "
                f"usually helps: try {choices}."
            )
        used = {names[c] for c in found.described}
        for kind in ("frequency", "concentration"):
            facts[kind] = {names[c]: round(float(getattr(findings, kind)[c]), 4) for c in findings.classes}
        facts["descriptions"] = {name: list(texts) for name, texts in descriptions.found.items() if name in used}
        self.record(step="concept_alignment", mismatched=mismatched, **facts)

    def fit_mixture(
        self, task: AdaptationTask, backbone: Backbone, texts: Floats, settings: MixtureSettings | None = None
    ) -> MixtureFit:
        """Return the Gaussian mixture of a task's images next to the class texts `(classes, width)`."""
        images, (labeled, labels) = self.embed(backbone, task.unlabeled).vectors, self.labeled_vectors(task, backbone)
        return fit_gaussian_mixture(
            images,
            texts,
            backbone.logit_scale,
            settings,
            labeled=labeled,
            labels=labels,
            is_single=task.labeled.is_single,
            allowed=task.target_classes,
        )

    def labeled_vectors(self, task: AdaptationTask, backbone: Backbone) -> tuple[Floats, Ints]:
        """Return the embeddings of the labeled images, `(labels, width)`, and their labels."""
        return self.embed(backbone, task.labeled.images, "Embedding labeled images").vectors, task.labeled.labels

    def batch_source(
        self, tuner: Tuner, task: AdaptationTask, strong_views: int = 0, chosen: Ints | None = None
    ) -> BatchSource:
        """Return the source of a student's inputs: cached embeddings unless it changes the image encoder.

        `chosen` are the positions of its unlabeled images, all by default.
        """
        backbone = tuner.backbone
        images, weak = task.unlabeled, self.embed(backbone, task.unlabeled).vectors
        if chosen is not None:
            images, weak = images.subset(chosen), weak[chosen]
        if tuner.edits_images:
            return PixelSource(images, task.labeled.images, task.labeled.labels, backbone.preprocessing, self.runtime)
        strong = []
        for number in range(strong_views):
            view = StrongView(backbone.preprocessing, number)
            title = f"Embedding augmented views {number + 1}/{strong_views}"
            found = embed_images(backbone, images, self.cache, self.runtime, self.batch_size, view, title)
            strong.append(found.vectors)
            if found.skipped:  # an image that has become unreadable keeps its weak view
                strong[-1] = np.array(weak)
                strong[-1][found.image_index] = found.vectors
        return EmbeddingSource(weak, strong, *self.labeled_vectors(task, backbone), self.runtime)

    def train(
        self, objective: nn.Module, schedule: PseudoLabelSchedule, optimization: Optimization, part: int = 0
    ) -> None:
        """Train a student; small matrix products are computed in one thread."""
        checkpoints = replace(self.checkpoints, part=part) if self.checkpoints else None
        with nullcontext() if schedule.tuner.edits_images else threads_for(0):
            fit(objective.to(self.runtime.device), schedule, optimization, self.runtime, checkpoints)

    def record(self, **facts: Any) -> None:  # noqa: ANN401 (anything that JSON can hold)
        """Record what happened in a round for the run folder and the report."""
        self.rounds.append(facts)

    def say(self, text: str) -> None:
        """Show a message on screen."""
        self.runtime.say(text)


class PseudoLabelSchedule(Schedule):
    """A schedule whose state is its pseudo-labels, and everything that was recorded so far."""

    context: Context
    tuner: Tuner
    pseudo_labels: PseudoLabels

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return pseudo-labels now and earlier, and what happened in each round."""
        history = self.context.history
        named = {"pseudo_labels.": self.pseudo_labels, **{f"history.{epoch}.": labels for epoch, labels in history}}
        tensors = {
            prefix + name: torch.tensor(array)
            for prefix, labels in named.items()
            for name, array in labels.arrays().items()
        }
        return tensors, {"rounds": self.context.rounds, "history": [epoch for epoch, _ in history]}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        n_classes = self.pseudo_labels.n_classes
        self.pseudo_labels = read_pseudo_labels(tensors, "pseudo_labels.", n_classes)
        self.context.rounds[:] = facts["rounds"]
        self.context.history[:] = [
            (epoch, read_pseudo_labels(tensors, f"history.{epoch}.", n_classes)) for epoch in facts["history"]
        ]


def read_pseudo_labels(tensors: Mapping[str, Tensor], prefix: str, n_classes: int) -> PseudoLabels:
    """Return the pseudo-labels that a checkpoint holds under a prefix."""
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in with_prefix(tensors, prefix).items()}
    return PseudoLabels(n_classes=n_classes, **arrays)


@dataclass(frozen=True)
class DescribeSettings:
    """The one setting of a baseline.

    Attributes:
        describe: With `none`, a class is represented by its name; with `all`, by the mean of name and descriptions.
    """

    describe: Literal["none", "all"] = "none"


class Method(ABC):
    """An adaptation method; its settings are a frozen dataclass."""

    Settings: ClassVar[type[Any]] = NoSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named changes of the default settings; `full` is the default on a GPU, `quick` on a CPU."""

    def __init__(self, settings: Any = None) -> None:  # noqa: ANN401 (each method has its own type)
        self.settings = self.Settings() if settings is None else settings

    @abstractmethod
    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Return the student that was adapted to the task."""


PLUGIN_BASE = Method
