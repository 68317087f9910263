"""Backbones whose weights are loaded when they are needed: what a cached run asks for is remembered in the cache.

Of a model in files, `<cache>/backbones/` remembers the fingerprint, the preprocessing and the logit scale, by the stamp
of its files and the versions of the libraries that load them. A run whose images and texts are in the cache thus needs
neither weights nor tokenizer. When weights are loaded after all, their fingerprint is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from captune.backbones.base import Backbone, Edit, Tokens
from captune.core import registry
from captune.core.arrays import Floats, content_key
from captune.core.errors import CaptuneError, ModelError
from captune.core.files import add_digest, check_digest, read_json, write_json
from captune.core.runtime import versions
from captune.core.settings import DEFAULT_BACKBONE
from captune.data.views import Preprocessing
from captune.embeddings.cache import EmbeddingCache, stamp_files


@dataclass(frozen=True)
class BackboneFacts:
    """What is remembered about a model."""

    fingerprint: str
    embed_dim: int
    logit_scale: float
    preprocessing: Preprocessing


def open_backbone(identifier: str, cache: EmbeddingCache) -> Backbone:
    """Return a backbone that loads its weights when they are needed; now, if nothing is remembered about them."""
    found = LazyBackbone(identifier, cache)
    if found.stamp is None:  # a source that cannot tell its files, or files that were written just now
        return found.load_now()
    if found.facts is None:
        found.loaded = loaded = found.load_now()
        facts = BackboneFacts(loaded.fingerprint(), loaded.embed_dim, loaded.logit_scale, loaded.preprocessing)
        write_json(found.path, add_digest(asdict(facts)))
        found.use(facts)
    return found


def is_remembered(identifier: str, cache: EmbeddingCache) -> bool:
    """Return whether a model was loaded before and its files have not changed, so that they need no check."""
    return LazyBackbone(identifier, cache).facts is not None


class LazyBackbone(Backbone):
    """A model in files, loaded when its towers or its tokenizer are first needed; it caches embeddings of texts.

    `stamp` is that of its files, None if they have none; `facts` are None if nothing is remembered about it.
    """

    def __init__(self, identifier: str, cache: EmbeddingCache) -> None:
        self.identifier, self._cache, self._device = identifier, cache, torch.device("cpu")
        source, self._name = registry.split_id("backbones", identifier, DEFAULT_BACKBONE)
        self._cls: type[Backbone] = registry.load("backbones", source)
        files = self._cls.files(self._name)
        self.stamp = stamp_files(files, f"{identifier}\n{versions()}") if files else None
        self.path = cache.folder / "backbones" / f"{self.stamp}.json"
        self.facts: BackboneFacts | None = None
        with suppress(OSError, ValueError, AttributeError, CaptuneError):  # pydantic's errors are ValueErrors
            content = read_json(self.path)
            check_digest(content, str(self.path))
            self.use(TypeAdapter(BackboneFacts).validate_python(content))

    def use(self, facts: BackboneFacts) -> None:
        """Use these facts about the model."""
        self.facts = facts
        self.embed_dim, self.logit_scale, self.preprocessing = facts.embed_dim, facts.logit_scale, facts.preprocessing

    def load_now(self) -> Backbone:
        """Load it; whether and when this happens does not change what a run draws, though models may draw weights."""
        with torch.random.fork_rng():
            return self._cls.load(self._name)

    @cached_property
    def loaded(self) -> Backbone:
        """Load the model, if that has not happened yet."""
        with torch.inference_mode(False):  # whoever asks first, training needs gradients through these weights
            found = self.load_now()
        if found.fingerprint() != self.fingerprint():
            raise ModelError(f"The weights of {self.identifier!r} changed while they were in use. Start again.")
        return found.to(self._device)

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
        return self._cls.portable_id(self)

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
        if "loaded" in vars(self):
            self.loaded.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Return the device that the weights are on or will be loaded to."""
        return self._device

    def fingerprint(self) -> str:
        """Return the remembered digest of the weights."""
        assert self.facts is not None
        return self.facts.fingerprint

    def cached_texts(self, texts: Sequence[str], encode: Callable[[Sequence[str]], Floats]) -> Floats:
        """Return the embeddings of sentences from the cache, or encode all of them and store them there."""
        keys = np.stack([content_key(text.encode("utf-8", "surrogatepass")) for text in texts])
        with self._cache.open_texts(str(self.stamp), texts, self.embed_dim) as shard:
            if (shard.known.find(keys) >= 0).all():
                return np.asarray(shard.find(keys), dtype=np.float32)
            vectors = encode(texts)
            shard.add(keys, vectors)
            return vectors
