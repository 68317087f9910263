"""What a method is: from a task and a backbone to a tuned student, read like the paper's algorithm box."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from captune.backbones.base import Backbone
from captune.data.images import ImageCollection
from captune.data.task import AdaptationTask
from captune.embedding_cache import EmbeddingCache
from captune.runtime import Runtime
from captune.scoring import EmbeddedImages, embed_images
from captune.tuners.base import NoSettings, Tuner


@dataclass(frozen=True)
class Context:
    """What a method may use besides its task; files, devices and ranks stay behind it."""

    runtime: Runtime
    cache: EmbeddingCache
    batch_size: int = 32
    rounds: list[dict[str, Any]] = field(default_factory=list)
    _embedded: dict[tuple[str, int], EmbeddedImages] = field(default_factory=dict)

    def embed(self, backbone: Backbone, images: ImageCollection) -> EmbeddedImages:
        """Return the embeddings of a collection, computed at most once in a run."""
        key = (images.fingerprint, id(backbone))
        if key not in self._embedded:
            self._embedded[key] = embed_images(backbone, images, self.cache, self.runtime, self.batch_size)
        return self._embedded[key]

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

    def __init__(self, settings: Any = None) -> None:  # noqa: ANN401 (each method has its own type)
        self.settings = self.Settings() if settings is None else settings

    @abstractmethod
    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Return the student that was adapted to the task."""


PLUGIN_BASE = Method
