"""The classifier that a run saves: prediction, and saving and loading without pickle."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from captune.backbones.base import Backbone
from captune.core import distributed, files, registry, runtime
from captune.core.arrays import Floats, check_probabilities, empty_rows, score_rows, softmax_rows, take_rows
from captune.core.errors import InputError, MissingExtraError, ModelError, RunFolderError
from captune.core.runtime import Runtime, unchanged
from captune.core.settings import DEFAULT_BACKBONE, RunSettings, build
from captune.data.images import ImageCollection
from captune.data.loading import load_batches
from captune.data.precomputed import Embeddings
from captune.data.views import Preprocessing, WeakView
from captune.data.vocabulary import Vocabulary
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_images, merge_parts
from captune.embeddings.predictions import Predictions
from captune.results.image_classifier import BATCH, EMBEDDINGS, PROBABILITIES, ImageClassifier, Output
from captune.tuners.base import Tuner

FORMAT, VERSION = "captune-classifier", 1
CARD, WEIGHTS = "classifier.json", "classifier.safetensors"
MOST_BYTES = 1 << 32
"""Of the weights of a classifier, without its backbone: a million classes have about 2 GB."""


@dataclass(frozen=True)
class Card:
    """The content of classifier.json."""

    format: str
    version: int
    backbone: str
    backbone_fingerprint: str
    names: tuple[str, ...]
    templates: tuple[str, ...]
    descriptions: dict[int, tuple[str, ...]]
    tuner: str
    tuner_settings: dict[str, Any]
    weights_digest: str
    preprocessing: Preprocessing | None = None
    digest: str = ""
    parts: tuple[str, ...] = ()
    """Names of the parts of merged classes; empty if no classes were merged."""
    n_parts: tuple[int, ...] = ()


class Classifier(ImageClassifier):
    """A tuned model with fixed class embeddings; a class that was merged keeps those of all its parts.

    `n_parts` is the number of class vectors of each class, in the order of the classes; None if each has one.
    """

    def __init__(
        self, tuner: Tuner, class_vectors: Tensor, names: Sequence[str] = (), n_parts: Sequence[int] = ()
    ) -> None:
        self.tuner, self.class_vectors = tuner.eval(), class_vectors.detach()
        self.tuner_name = registry.name_of("tuners", type(tuner))
        self.backbone, self.vocabulary, self.width = tuner.backbone, tuner.vocabulary, tuner.embed_dim
        self.names, self.preprocessing = tuple(names) or self.vocabulary.names, self.backbone.preprocessing
        self.n_parts = tuple(n_parts) if max(n_parts, default=1) > 1 else None
        if self.n_parts and (min(n_parts) < 1 or sum(n_parts) != len(class_vectors) or len(n_parts) != len(self.names)):
            raise ValueError(f"{n_parts} parts of {len(self.names)} classes with {len(class_vectors)} vectors")

    def unite(self, probabilities: Floats) -> Floats:
        """Return probabilities of classes from those of their parts, by the most probable part of each class.

        So an image is of a merged class if and only if it was of one of its parts.
        """
        if self.n_parts is None:
            return probabilities
        best = np.maximum.reduceat(probabilities, np.cumsum([0, *self.n_parts[:-1]]), axis=1)
        return np.asarray(best / best.sum(axis=1, keepdims=True), dtype=np.float32)

    @classmethod
    def from_tuner(cls, tuner: Tuner) -> Classifier:
        """Fix the class embeddings of a trained tuner."""
        with torch.inference_mode():
            class_vectors = tuner.class_embeddings().clone()
        return cls(tuner, class_vectors)

    def to(self, device: torch.device) -> Classifier:
        """Move everything to a device."""
        self.backbone.to(device)
        self.tuner.to(device)
        self.class_vectors = self.class_vectors.to(device)
        return self

    @torch.inference_mode()
    def score_views(self, views: NDArray[np.uint8], output: Output = PROBABILITIES) -> Floats:
        """Return probabilities `(images, classes)` or embeddings `(images, width)` of decoded images."""
        pixels = self.preprocessing.normalize(views).to(self.backbone.device)
        return self._score(self.tuner.image_embeddings(pixels), output)

    @torch.inference_mode()
    def score_embeddings(self, vectors: Floats, output: Output = PROBABILITIES) -> Floats:
        """Return the same from embeddings of the backbone, unless the tuner changes the image encoder."""
        if self.tuner.edits_images:
            raise InputError(f"The tuner {self.tuner_name!r} changes the image encoder: embeddings cannot be reused.")
        if vectors.shape[1] != self.backbone.embed_dim:
            raise InputError(
                f"The embeddings have width {vectors.shape[1]}, but the classifier was made for width "
                f"{self.backbone.embed_dim}. Use embeddings of the same model."
            )

        def score(rows: Floats) -> Floats:
            return self._score(self.tuner.refine(torch.from_numpy(rows).to(self.backbone.device)), output)

        return score_rows(vectors, len(self.names) if output == PROBABILITIES else self.width, score)

    def summary(self) -> dict[str, object]:
        """Return the classes, the backbone and the tuner."""
        return {**super().summary(), "backbone": self.backbone.identifier, "tuner": self.tuner_name}

    def compute(
        self,
        images: ImageCollection,
        cache: EmbeddingCache | None,
        engine: Runtime,
        batch_size: int = RunSettings.batch_size,
        output: Output = PROBABILITIES,
    ) -> Predictions:
        """Return the rows of the readable images; a cache is used unless the tuner changes the image encoder."""
        if isinstance(images, Embeddings) or (cache is not None and not self.tuner.edits_images):
            found = embed_images(self.backbone, images, cache or EmbeddingCache(), engine, batch_size)
            return self._rows(images, found.image_index, self.score_embeddings(found.vectors, output), found.skipped)
        batches = [np.arange(i, min(i + batch_size, len(images))) for i in range(0, len(images), batch_size)]
        rows = empty_rows(len(images), len(self.names) if output == PROBABILITIES else self.width)
        is_done, skipped = np.zeros(len(images), dtype=np.bool_), dict[int, str]()
        own = distributed.part(batches)
        with engine.progress("Classifying images", sum(map(len, own))) as advance, engine.autocast():
            for batch in load_batches(images, own, WeakView(self.preprocessing), workers=engine.workers):
                if len(batch.pixels):
                    rows[batch.positions] = self.score_views(batch.pixels, output)
                is_done[batch.positions] = True
                skipped.update(batch.problems)
                advance(len(batch.positions) + len(batch.problems))
        index, skipped = merge_parts(rows, is_done, skipped)
        return self._rows(images, index, take_rows(rows, index), skipped)

    @unchanged()
    def _compute(
        self, images: ImageCollection, output: Output, settings: RunSettings | None = None, quiet: bool = True
    ) -> Predictions:
        """Compute a few images at once, more with worker processes and the cache."""
        if settings is not None:
            cache: EmbeddingCache | None = EmbeddingCache.of(settings.cache)
            engine = runtime.start(settings, quiet=quiet)
            self.to(engine.device)
        else:
            is_few = len(images) <= BATCH and not isinstance(images, Embeddings)
            cache = None if is_few else EmbeddingCache()
            engine = runtime.start(accelerator=self.backbone.device.type, workers=0 if is_few else -1, quiet=quiet)
        with distributed.together():
            return self.compute(images, cache, engine, output=output)

    def _score(self, vectors: Tensor, output: Output) -> Floats:
        if output == EMBEDDINGS:
            return vectors.float().cpu().numpy()
        scores = self.tuner.logits(vectors.float(), self.class_vectors).cpu().numpy()
        return self.unite(check_probabilities(softmax_rows(scores)))

    def save(self, folder: str | Path) -> None:
        """Write classifier.safetensors, then classifier.json, which holds its digest."""
        tensors = {f"tuner.{key}": value.contiguous() for key, value in self.tuner.state_dict().items()}
        tensors |= {f"backbone.{key}": value.contiguous() for key, value in self.backbone.state().items()}
        content = save_tensors({"class_vectors": self.class_vectors.contiguous(), **tensors})
        card = Card(
            format=FORMAT,
            version=VERSION,
            backbone=self.backbone.portable_id(),
            backbone_fingerprint=self.backbone.fingerprint(),
            names=self.names,
            templates=self.vocabulary.templates,
            descriptions={c: tuple(s) for c, s in self.vocabulary.descriptions.items()},
            tuner=self.tuner_name,
            tuner_settings=dataclasses.asdict(self.tuner.settings),
            weights_digest=files.digest(content),
            preprocessing=self.preprocessing,
            parts=self.vocabulary.names if self.n_parts else (),
            n_parts=self.n_parts or (),
        )
        files.write_whole(Path(folder) / WEIGHTS, content)
        stored = {key: value for key, value in dataclasses.asdict(card).items() if value != ()}
        files.write_json(Path(folder) / CARD, files.add_digest(stored))

    @classmethod
    def load(cls, folder: str | Path, backbone: Backbone | None = None) -> Classifier:
        """Load a saved classifier; pass `backbone` if its weights are already in memory."""
        card, content = _read(Path(folder))
        try:
            tensors = load_tensors(content)
            state = {key: tensors.pop(key) for key in list(tensors) if key.startswith("backbone.")}
            if backbone is None:
                source, name = registry.split_id("backbones", card.backbone, DEFAULT_BACKBONE)
                backbone_class: type[Backbone] = registry.load("backbones", source)
                state = {key.removeprefix("backbone."): value for key, value in state.items()}
                backbone = backbone_class.restore(name, card.names, state)
            for what, found, expected in (
                ("weights", backbone.fingerprint(), card.backbone_fingerprint),
                ("preprocessing", backbone.preprocessing, card.preprocessing or backbone.preprocessing),
            ):
                if found != expected:
                    raise RunFolderError(
                        f"The {what} of {card.backbone!r} differ from those of the classifier in {str(folder)!r}: "
                        f"{found}, expected {expected}. Use the same model files, or adapt again."
                    )
            tuner_class = registry.load("tuners", card.tuner)
            retired = tuner_class.retired.items()
            known = {key: value for key, value in card.tuner_settings.items() if (key, value) not in retired}
            vocabulary = Vocabulary(card.parts or card.names, card.templates, card.descriptions)
            tuner = tuner_class(backbone, vocabulary, build(tuner_class.Settings, known, "tuner settings"))
            class_vectors = tensors.pop("class_vectors")
            shape, expected_shape = tuple(class_vectors.shape), (len(vocabulary), tuner.embed_dim)
            if shape != expected_shape or not class_vectors.is_floating_point():
                raise ValueError(f"class vectors are {class_vectors.dtype} of shape {shape}, expected {expected_shape}")
            if not class_vectors.isfinite().all() or not class_vectors.any(dim=1).all():
                raise ValueError("class vectors must be finite and not zero")
            tuner.load_state_dict({key.removeprefix("tuner."): value for key, value in tensors.items()})
            return cls(tuner.to(backbone.device), class_vectors.to(backbone.device), card.names, card.n_parts)
        except (RunFolderError, ModelError, MissingExtraError, MemoryError):
            raise
        except Exception as error:  # safetensors, torch and pydantic raise errors of many classes
            raise RunFolderError(f"The classifier in {str(folder)!r} cannot be used: {error}.") from error


def _read(folder: Path) -> tuple[Card, bytes]:
    path, weights = folder / CARD, folder / WEIGHTS
    missing = f"No classifier at {str(folder)!r}: {CARD!r} is missing. Make one with captune adapt."
    raw = files.read_card(path, FORMAT, VERSION, missing)
    files.refuse_links(folder, (WEIGHTS,), follow=True)
    files.check_digest(raw, str(path))
    card = files.build_card(Card, raw, str(path))
    with suppress(OSError):
        if weights.stat().st_size <= MOST_BYTES:
            content = weights.read_bytes()
            if files.digest(content) == card.weights_digest:
                return card, content
    raise RunFolderError(
        f"{str(weights)!r} cannot be read, does not match the digest in {CARD}, or has more than {MOST_BYTES:,} bytes: "
        "it was damaged or changed. Copy the run again or adapt again."
    )
