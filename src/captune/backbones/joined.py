"""A backbone with a second image encoder; texts are scored in the space of the first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from captune.backbones.base import Backbone, Edit, Tokens, load_backbone
from captune.core import registry
from captune.core.arrays import Floats
from captune.core.errors import InputError, ModelError
from captune.core.files import digest
from captune.core.settings import DEFAULT_BACKBONE
from captune.data.precomputed import Embeddings

WIDTH = "width:"
"""How the id of a second encoder begins of which only the embeddings are known."""


class Joined(Backbone):
    """Images are `[first, weight * second]` of length one, and texts are padded with zeros.

    The logit scale grows by as much as the first part shrinks, so that zero-shot scores are those of the first encoder.
    Everything else (mixture, groups, neighbors, map) sees wider embeddings.
    """

    def __init__(self, first: Backbone, second: Backbone | int, weight: float) -> None:
        self.first, self.weight = first, weight
        self.second: Backbone | None = None if isinstance(second, int) else second
        self.second_width = second if isinstance(second, int) else second.embed_dim
        self._length = math.sqrt(1.0 + weight**2)
        second_id = f"{WIDTH}{second}" if isinstance(second, int) else second.identifier
        self.identifier = self._id(first.identifier, second_id)
        self.embed_dim = first.embed_dim + self.second_width
        self.logit_scale = first.logit_scale * self._length
        self.has_image_encoder = first.has_image_encoder and self.second is not None
        self.preprocessing = first.preprocessing
        if self.second is not None and first.has_image_encoder:
            self.preprocessing = replace(first.preprocessing, second=self.second.preprocessing)

    def _id(self, first: str, second: str) -> str:
        return f"joined:{self.weight:g}|{first}|{second}"

    def __getattr__(self, name: str) -> Any:
        if name not in ("image_tower", "text_tower"):
            raise AttributeError(name)
        return getattr(self.first, name)

    @classmethod
    def load(cls, name: str) -> Joined:
        """Load both encoders."""
        weight, first, second = _load_parts(name)
        return cls(load_backbone(first), second, weight)

    @classmethod
    def restore(cls, name: str, names: Sequence[str], tensors: Mapping[str, Tensor]) -> Joined:
        """Load both encoders of a saved classifier; the first may have state."""
        weight, first, second = _load_parts(name)
        source, own = registry.split_id("backbones", first, DEFAULT_BACKBONE)
        return cls(registry.load("backbones", source).restore(own, names, tensors), second, weight)

    def portable_id(self) -> str:
        """Return the id with those of both encoders."""
        second = f"{WIDTH}{self.second_width}" if self.second is None else self.second.portable_id()
        return self._id(self.first.portable_id(), second)

    def state(self) -> dict[str, Tensor]:
        """Return what the first encoder needs."""
        return self.first.state()

    def parts(self) -> Sequence[nn.Module | Backbone]:
        """Return both encoders."""
        return (self.first,) if self.second is None else (self.first, self.second)

    def fingerprint(self) -> str:
        """Return a digest of the weights of both encoders, and of the weight of the second."""
        second = str(self.second_width) if self.second is None else self.second.fingerprint()
        return digest(f"{self.first.fingerprint()} {second} {self.weight:g}".encode())

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize for the text encoder."""
        return self.first.tokenize(texts)

    def image_features(self, pixels: Tensor, edit: Edit | None = None) -> Tensor:
        """Encode the view of each encoder, which stand one below the other."""
        if self.second is None or self.preprocessing.second is None:
            raise ModelError(
                "Made from embeddings of two encoders, this classifier needs captune.Embeddings(vectors, second=...)."
            )
        one, other = self.preprocessing.split(pixels)
        parts = self.first.encode_image(one, edit), self.weight * self.second.encode_image(other)
        return torch.cat(parts, dim=1) / self._length

    def text_features(self, tokens: Tokens, edit: Edit | None = None) -> Tensor:
        """Encode texts, padded with zeros."""
        return pad(self.first.text_features(tokens, edit), (0, self.second_width))

    def join(self, first: Floats, second: Floats) -> Floats:
        """Return joined image embeddings `(images, width)`."""
        joined = np.hstack([first, np.float32(self.weight) * second]) / np.float32(self._length)
        return np.asarray(joined, dtype=np.float32)

    def vectors_of(self, images: Embeddings) -> Floats:
        """Return the joined embeddings of images that are embedded already, `(images, width)`."""
        second = images.second
        widths = images.width, 0 if second is None else second.shape[1]
        if second is None or widths != (self.first.embed_dim, self.second_width):
            raise InputError(
                f"The embeddings have widths {widths}, expected {(self.first.embed_dim, self.second_width)}. Pass "
                "captune.Embeddings(vectors, second=...), or a file that has a second array."
            )
        return self.join(images.vectors, second)

    def padded(self, texts: Floats) -> Floats:
        """Return text embeddings of the first space in the joined one, `(texts, width)`."""
        return np.pad(texts, ((0, 0), (0, self.second_width)))


def _load_parts(name: str) -> tuple[float, str, Backbone | int]:
    """Return the weight, the id of the first encoder and the loaded second one, or its width."""
    weight, _, rest = name.partition("|")
    first, _, second = rest.rpartition("|")
    try:
        width = int(second.removeprefix(WIDTH)) if second.startswith(WIDTH) else None
        return float(weight), first, load_backbone(second) if width is None else width
    except ValueError:
        raise ModelError(f"'joined:{name}' is no pair of encoders, expected joined:WEIGHT|FIRST|SECOND.") from None
