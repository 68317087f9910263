"""What a method is: from a task and a backbone to a tuned student, read like the paper's algorithm box."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from captune.backbones.base import Backbone
from captune.core.arrays import Floats
from captune.core.errors import InputError
from captune.core.runtime import Runtime
from captune.data.images import ImageCollection, no_usable_image
from captune.data.task import AdaptationTask
from captune.data.views import StrongView
from captune.describers.base import Describer
from captune.describers.none import NoDescriber
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import EmbeddedImages, embed_images
from captune.labeling.pseudo_labels import PseudoLabels
from captune.training.checkpoint import CheckpointFolder
from captune.training.feeds import EmbeddingFeed, Feed, PixelFeed
from captune.tuners.base import NoSettings, Tuner


@dataclass(frozen=True)
class Context:
    """What a method may use besides its task; files, devices and ranks stay behind it."""

    runtime: Runtime
    cache: EmbeddingCache
    batch_size: int = 32
    describer: Describer = field(default_factory=NoDescriber)
    domain: str = "{}"
    checkpoints: CheckpointFolder | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
    history: list[tuple[int, PseudoLabels]] = field(default_factory=list)
    """Pseudo-labels as they stood after an epoch, counted among the unlabeled images that can be read."""
    arrays: dict[str, Floats] = field(default_factory=dict)
    """What a report shows besides numbers, such as `similarity` and `margin` `(classes, classes)`."""
    _embedded: dict[tuple[ImageCollection, int], EmbeddedImages] = field(default_factory=dict)

    def embed(self, backbone: Backbone, images: ImageCollection) -> EmbeddedImages:
        """Return the embeddings of a collection, computed at most once in a run."""
        key = (images, id(backbone))
        if key not in self._embedded:
            found = embed_images(backbone, images, self.cache, self.runtime, self.batch_size)
            if len(images) and not len(found.image_index):
                raise InputError(no_usable_image(images, found.skipped))
            self._embedded[key] = found
        return self._embedded[key]

    def feed(self, tuner: Tuner, task: AdaptationTask, strong_views: int) -> Feed:
        """Return where a student's inputs come from: nothing is decoded again that a fixed encoder saw already."""
        backbone = tuner.backbone
        unlabeled, labeled = self.embed(backbone, task.unlabeled), self.embed(backbone, task.labeled.images)
        given = task.labeled.labels[labeled.image_index]
        if tuner.edits_images:
            readable = task.unlabeled.subset(unlabeled.image_index)
            given_images = task.labeled.images.subset(labeled.image_index)
            return PixelFeed(readable, given_images, given, backbone.preprocessing, self.runtime)
        readable = task.unlabeled.subset(unlabeled.image_index)
        strong = [self._strong(backbone, readable, unlabeled.vectors, number) for number in range(strong_views)]
        return EmbeddingFeed(unlabeled.vectors, strong, labeled.vectors, given, self.runtime)

    def _strong(self, backbone: Backbone, images: ImageCollection, weak: Floats, number: int) -> Floats:
        """Return embeddings of a strong view; an image that went away since it was seen keeps its weak one."""
        view = StrongView(backbone.preprocessing, self.runtime.seed, number)
        found = embed_images(backbone, images, self.cache, self.runtime, self.batch_size, view)
        if not found.skipped:
            return found.vectors
        rows = np.array(weak)
        rows[found.image_index] = found.vectors
        return rows

    def record(self, **facts: Any) -> None:  # noqa: ANN401 (anything that JSON can hold)
        """Keep what happened in a round for the run folder and the report."""
        self.rounds.append(facts)

    @property
    def say(self) -> Callable[[str], None]:
        """Return the function that shows a remark on screen."""
        return self.runtime.say


class Method(ABC):
    """An adaptation method; its settings are a frozen dataclass."""

    Settings: ClassVar[type[Any]] = NoSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named departures from the default settings; `full` and `quick` are chosen by the machine if none is named."""

    def __init__(self, settings: Any = None) -> None:  # noqa: ANN401 (each method has its own type)
        self.settings = self.Settings() if settings is None else settings

    @abstractmethod
    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Return the student that was adapted to the task."""


PLUGIN_BASE = Method
