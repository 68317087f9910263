"""Backbones whose weights are loaded when they are needed: what a cached run asks for is remembered in the cache.

Of a model in files, `<cache>/backbones/` remembers the fingerprint, the preprocessing and the logit scale, by the stamp
of its files (`data/stamps.py`) and the versions of the libraries that load them. A run whose images and texts are in
the cache thus needs neither weights nor tokenizer. When weights are loaded after all, their fingerprint is compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from captune.backbones.base import Backbone, Edit, Tokens
from captune.core import registry
from captune.core.arrays import Floats
from captune.core.cards import read_json
from captune.core.errors import ModelError
from captune.core.files import digest, write_json
from captune.core.settings import DEFAULT_BACKBONE
from captune.data.keys import content_key
from captune.data.stamps import stamp_files
from captune.data.views import Preprocessing
from captune.embeddings.cache import CacheShard, EmbeddingCache

LIBRARIES = ("captune", "torch", "transformers", "tokenizers")


@dataclass(frozen=True)
class BackboneFacts:
    """What is remembered about a model."""

    fingerprint: str
    embed_dim: int
    logit_scale: float
    preprocessing: Preprocessing

    def digest(self) -> str:
        """Return a digest that tells damaged facts."""
        return digest(repr(self).encode())


def open_backbone(identifier: str, cache: EmbeddingCache) -> Backbone:
    """Return a backbone that loads its weights when they are needed; now, if nothing is remembered about them."""
    source, name = registry.split_id("backbones", identifier, DEFAULT_BACKBONE)
    backbone_class: type[Backbone] = registry.load("backbones", source)
    stamp = _stamp(backbone_class, identifier, name)
    if stamp is None:  # a source that cannot tell its files, or files that were written just now
        return _load(backbone_class, name)
    facts, loaded = _remembered(cache, stamp), None
    if facts is None:
        loaded = _load(backbone_class, name)
        facts = BackboneFacts(loaded.fingerprint(), loaded.embed_dim, loaded.logit_scale, loaded.preprocessing)
        write_json(_path(cache, stamp), {"facts": dataclasses.asdict(facts), "digest": facts.digest()})
    return LazyBackbone(identifier, facts, partial(cache.open_texts, stamp), backbone_class, name, loaded)


def _load(backbone_class: type[Backbone], name: str) -> Backbone:
    """Load a model; whether and when this happens does not change what a run draws, though models may draw weights."""
    with torch.random.fork_rng():
        return backbone_class.load(name)


def is_remembered(identifier: str, cache: EmbeddingCache) -> bool:
    """Return whether a model was loaded before and its files have not changed, so that they need no check."""
    source, name = registry.split_id("backbones", identifier, DEFAULT_BACKBONE)
    stamp = _stamp(registry.load("backbones", source), identifier, name)
    return stamp is not None and _remembered(cache, stamp) is not None


class LazyBackbone(Backbone):
    """A model in files, loaded when its towers or its tokenizer are first needed; it caches embeddings of texts."""

    def __init__(
        self,
        identifier: str,
        facts: BackboneFacts,
        open_texts: Callable[[Sequence[str], int], CacheShard],
        backbone_class: type[Backbone],
        name: str,
        loaded: Backbone | None = None,
    ) -> None:
        self.identifier, self.embed_dim, self.logit_scale = identifier, facts.embed_dim, facts.logit_scale
        self.preprocessing = facts.preprocessing
        self._facts, self._open_texts, self._device = facts, open_texts, torch.device("cpu")
        self._class, self._name = backbone_class, name
        if loaded is not None:
            self.__dict__["loaded"] = loaded

    @cached_property
    def loaded(self) -> Backbone:
        """Load the model, if that has not happened yet."""
        with torch.inference_mode(False):  # whoever asks first, training needs gradients through these weights
            found = _load(self._class, self._name)
        if found.fingerprint() != self._facts.fingerprint:
            raise ModelError(
                f"The weights of {self.identifier!r} changed while they were in use. Start again with the new ones."
            )
        return found.to(self._device)

    @property
    def is_loaded(self) -> bool:
        """Return whether the weights are in memory."""
        return "loaded" in self.__dict__

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (the towers, and what only some backbones have)
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.loaded, name)

    @classmethod
    def load(cls, name: str) -> Backbone:
        """Load the model with an id."""
        return open_backbone(name, EmbeddingCache())

    def portable_id(self) -> str:
        """Return the id as the class of the model writes it, which needs no weights."""
        return self._class.portable_id(self)

    def modules(self) -> Iterator[nn.Module]:
        """Return the modules of the loaded model."""
        return self.loaded.modules()

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize with the loaded tokenizer."""
        return self.loaded.tokenize(texts)

    def image_features(self, pixels: Tensor, edit: Edit | None = None) -> Tensor:
        """Encode images with the loaded model."""
        return self.loaded.image_features(pixels, edit)

    def text_features(self, tokens: Tokens, edit: Edit | None = None) -> Tensor:
        """Encode texts with the loaded model."""
        return self.loaded.text_features(tokens, edit)

    def to(self, device: torch.device) -> Backbone:
        """Move the weights to a device, or load them there later."""
        self._device = device
        if self.is_loaded:
            self.loaded.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Return the device that the weights are on or will be loaded to."""
        return self._device

    def fingerprint(self) -> str:
        """Return the remembered digest of the weights."""
        return self._facts.fingerprint

    def cached_texts(self, texts: Sequence[str], encode: Callable[[Sequence[str]], Floats]) -> Floats:
        """Return the embeddings of sentences from the cache, or encode all of them and store them there."""
        keys = np.stack([content_key(text.encode("utf-8", "surrogatepass")) for text in texts])
        with self._open_texts(texts, self.embed_dim) as shard:
            if (shard.known.find(keys) >= 0).all():
                return np.asarray(shard.find(keys), dtype=np.float32)
            vectors = encode(texts)
            shard.add(keys, vectors)
            return vectors


def _stamp(backbone_class: type[Backbone], identifier: str, name: str) -> str | None:
    files = backbone_class.files(name)
    return stamp_files(files, "\n".join([identifier, *map(_version, LIBRARIES)])) if files else None


def _version(library: str) -> str:
    with suppress(PackageNotFoundError):
        return version(library)
    return ""


def _remembered(cache: EmbeddingCache, stamp: str) -> BackboneFacts | None:
    """Return what is remembered about a model, or None if there is nothing or it is damaged."""
    try:
        content = read_json(_path(cache, stamp))
        facts = TypeAdapter(BackboneFacts).validate_python(content["facts"])
        return facts if content["digest"] == facts.digest() else None
    except (OSError, ValueError, TypeError, KeyError, ModelError):  # pydantic's errors are ValueErrors
        return None


def _path(cache: EmbeddingCache, stamp: str) -> Path:
    return cache.folder / "backbones" / f"{stamp}.json"
