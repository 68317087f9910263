"""The classifier that a run leaves behind: predicts, saves and loads, never unpickles."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from captune.backbones.base import Backbone
from captune.core import registry
from captune.core.arrays import Floats, softmax_rows
from captune.core.errors import InputError, RunFolderError
from captune.core.files import is_folder, write_json, write_whole
from captune.core.scratch import empty_rows
from captune.core.settings import DEFAULT_BACKBONE, build
from captune.data.views import Preprocessing
from captune.data.vocabulary import Vocabulary
from captune.results.image_classifier import ImageClassifier
from captune.tuners.base import Tuner

FORMAT, VERSION = "captune-classifier", 1
CARD, WEIGHTS = "classifier.json", "classifier.safetensors"


@dataclass(frozen=True)
class Card:
    """What classifier.json says."""

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


class Classifier(ImageClassifier):
    """A tuned student with fixed class embeddings."""

    def __init__(self, tuner: Tuner, tuner_name: str, class_vectors: Tensor) -> None:
        self.tuner, self.tuner_name = tuner.eval(), tuner_name
        self.class_vectors = class_vectors.detach()

    @classmethod
    def from_tuner(cls, tuner: Tuner) -> Classifier:
        """Fix the class embeddings of a trained tuner."""
        with torch.inference_mode():
            class_vectors = tuner.class_embeddings().clone()
        return cls(tuner, registry.name_of("tuners", type(tuner)), class_vectors)

    @property
    def backbone(self) -> Backbone:
        """Return the frozen encoder pair below."""
        return self.tuner.backbone

    def to(self, device: torch.device) -> Classifier:
        """Move everything to a device."""
        self.backbone.to(device)
        self.tuner.to(device)
        self.class_vectors = self.class_vectors.to(device)
        return self

    @property
    def vocabulary(self) -> Vocabulary:
        """Return the classes."""
        return self.tuner.vocabulary

    @property
    def names(self) -> tuple[str, ...]:
        """Return the class names; a class id is its position here."""
        return self.vocabulary.names

    @property
    def preprocessing(self) -> Preprocessing:
        """Return how an image becomes the backbone's input."""
        return self.backbone.preprocessing

    def score_views(self, views: NDArray[np.uint8]) -> Floats:
        """Return probabilities of decoded views."""
        return self.score_pixels(self.preprocessing.normalize(views))

    @torch.inference_mode()
    def score_pixels(self, pixels: Tensor) -> Floats:
        """Return probabilities of preprocessed images, `(images, classes)`."""
        vectors = self.tuner.image_embeddings(pixels.to(self.backbone.device))
        return self._score(vectors)

    @torch.inference_mode()
    def score_embeddings(self, vectors: Floats) -> Floats:
        """Return probabilities from the backbone's own embeddings; only where the tuner leaves the encoder alone."""
        if self.tuner.edits_images:
            raise InputError(f"The tuner {self.tuner_name!r} changes the image encoder: cached embeddings do not fit.")
        scored = empty_rows(len(vectors), len(self.names))
        for rows in (slice(i, i + 8192) for i in range(0, len(vectors), 8192)):
            scored[rows] = self._score(self.tuner.refine(torch.from_numpy(vectors[rows]).to(self.backbone.device)))
        return scored

    def _score(self, vectors: Tensor) -> Floats:
        return softmax_rows(self.tuner.logits(vectors.float(), self.class_vectors).cpu().numpy())

    def save(self, folder: str | Path) -> None:
        """Write classifier.json and classifier.safetensors; the JSON comes last, so that it vouches for both."""
        tensors = {f"tuner.{key}": value.contiguous() for key, value in self.tuner.state_dict().items()}
        content = save_tensors({"class_vectors": self.class_vectors.contiguous(), **tensors})
        card = Card(
            format=FORMAT,
            version=VERSION,
            backbone=_portable(self.backbone.identifier),
            backbone_fingerprint=self.backbone.fingerprint(),
            names=self.names,
            templates=self.vocabulary.templates,
            descriptions={c: tuple(s) for c, s in self.vocabulary.descriptions.items()},
            tuner=self.tuner_name,
            tuner_settings=dataclasses.asdict(self.tuner.settings),
            weights_digest=_digest(content),
        )
        write_whole(Path(folder) / WEIGHTS, content)
        write_json(Path(folder) / CARD, dataclasses.asdict(card))

    @classmethod
    def load(cls, folder: str | Path, backbone: Backbone | None = None) -> Classifier:
        """Read a saved classifier; `backbone` spares loading the weights again."""
        card, content = _read(Path(folder))
        if backbone is None:
            source, name = registry.split_id("backbones", card.backbone, DEFAULT_BACKBONE)
            backbone = registry.load("backbones", source).load(name)
        if backbone.fingerprint() != card.backbone_fingerprint:
            raise RunFolderError(
                f"The weights of {card.backbone!r} are not those that the classifier in {str(folder)!r} was made "
                "with. Use the same model files, or adapt again."
            )
        tuner_class = registry.load("tuners", card.tuner)
        try:
            settings = build(tuner_class.Settings, card.tuner_settings, "tuner settings")
            tuner = tuner_class(backbone, Vocabulary(card.names, card.templates, card.descriptions), settings)
            tensors = load_tensors(content)
            class_vectors = tensors.pop("class_vectors")
            expected = (len(card.names), tuner.embed_dim)
            if tuple(class_vectors.shape) != expected or not class_vectors.isfinite().all():
                raise ValueError(f"class vectors of shape {tuple(class_vectors.shape)}, expected finite {expected}")
            tuner.load_state_dict({key.removeprefix("tuner."): value for key, value in tensors.items()})
        except Exception as error:  # safetensors, torch and the checks of names and settings each have their own
            raise RunFolderError(f"The classifier in {str(folder)!r} does not fit together: {error}.") from error
        return cls(tuner.to(backbone.device), card.tuner, class_vectors.to(backbone.device))


def _read(folder: Path) -> tuple[Card, bytes]:
    try:
        raw = json.loads((folder / CARD).read_text(encoding="utf-8"))
        content = (folder / WEIGHTS).read_bytes()
    except FileNotFoundError as error:
        raise RunFolderError(
            f"No classifier at {str(folder)!r}: {error.filename!r} is missing. Make one with captune adapt."
        ) from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"The classifier in {str(folder)!r} cannot be read: {error}.") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise RunFolderError(f"{str(folder / CARD)!r} is not a {FORMAT} file.")
    if raw.get("version") not in range(1, VERSION + 1):
        raise RunFolderError(
            f"The classifier in {str(folder)!r} has format version {raw.get('version')!r}, this captune reads up to "
            f"{VERSION}. Upgrade captune: pip install -U captune."
        )
    try:
        card = TypeAdapter(Card).validate_python(raw)
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, entry["loc"])) for entry in error.errors())
        raise RunFolderError(f"{str(folder / CARD)!r} is damaged: {fields}.") from error
    if _digest(content) != card.weights_digest:
        raise RunFolderError(
            f"{str(folder / WEIGHTS)!r} is not the file that {CARD} vouches for: it was damaged or changed. "
            "Copy the run again or adapt again."
        )
    return card, content


def _portable(identifier: str) -> str:
    """Return a backbone's id that means the same from any folder of this machine."""
    source, _, name = identifier.partition(":")
    return f"{source}:{Path(name).resolve()}" if name and is_folder(name) else identifier


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
