"""What a tuner is: trainable parts on a frozen backbone that produce embeddings of images and classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone
from captune.data.vocabulary import Vocabulary


@dataclass(frozen=True)
class NoSettings:
    """No settings."""


class Tuner(nn.Module, ABC):
    """Trainable parts on a frozen backbone; only they are its parameters and state."""

    Settings: ClassVar[type[Any]] = NoSettings
    edits_images: ClassVar[bool] = False
    """Whether the image encoder itself changes; if not, cached embeddings are refined."""

    prompted_towers: ClassVar[frozenset[str]] = frozenset()
    """The towers (`image`, `text`) that must support prompts, which is checked before loading."""
    retired: ClassVar[Mapping[str, Any]] = {}
    """Settings in classifiers of older versions that mean nothing with these values."""

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, settings: Any = None) -> None:  # noqa: ANN401
        super().__init__()
        # Kept out of the module tree: the backbone is neither trained nor saved with the tuner.
        object.__setattr__(self, "backbone", backbone)
        self.vocabulary = vocabulary
        self.settings = self.Settings() if settings is None else settings

    backbone: Backbone

    @property
    def embed_dim(self) -> int:
        """Return the width of the embeddings of images and classes."""
        return self.backbone.embed_dim

    @abstractmethod
    def class_embeddings(self) -> Tensor:
        """Return unit embeddings of all classes, `(classes, width)`."""

    def encode(self, pixels: Tensor) -> Tensor:
        """Return the image encoder's embeddings of a batch, `(images, width)`."""
        return self.backbone.encode_image(pixels)

    def refine(self, embeddings: Tensor) -> Tensor:
        """Return unit embeddings refined from those of the image encoder, `(images, width)`."""
        return embeddings

    def image_embeddings(self, pixels: Tensor) -> Tensor:
        """Return unit embeddings of a batch of preprocessed images, `(images, width)`."""
        return self.refine(self.encode(pixels))

    def logits(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return logits `(images, classes)`: the scaled cosine, unless overridden."""
        with torch.autocast(images.device.type, enabled=False):  # in half precision a logit of 100 is off by up to 1/4
            return self.backbone.logit_scale * images.float() @ classes.float().T


PLUGIN_BASE = Tuner
