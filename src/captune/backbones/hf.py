"""CLIP, SigLIP and SigLIP 2 models in transformers' format, from the Hugging Face hub or a local folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import nn

from captune.backbones import _transformers_io as library
from captune.backbones._towers import ClipImageTower, ClipTextTower, SiglipImageTower, SiglipTextTower
from captune.backbones.base import Backbone, Tokens
from captune.core.errors import ModelError
from captune.data.views import Preprocessing, Resample

SUPPORTED = ("clip", "siglip", "siglip2")
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
RESAMPLE: dict[int, Resample] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


class HuggingFace(Backbone):
    """A transformers CLIP, SigLIP or SigLIP 2 model."""

    examples: ClassVar[tuple[str, ...]] = (
        "openai/clip-vit-base-patch32",
        "openai/clip-vit-base-patch16",
        "openai/clip-vit-large-patch14",
        "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
        "google/siglip-base-patch16-224",
        "google/siglip2-base-patch16-224",
    )

    def __init__(self, identifier: str, model: Any, tokenizer: Any, preprocessing: Preprocessing) -> None:
        self.identifier, self.model, self.tokenizer = identifier, model, tokenizer
        self.preprocessing = preprocessing
        self.is_clip = model.config.model_type == "clip"
        if self.is_clip:
            self.image_tower = ClipImageTower(model.vision_model, model.visual_projection)
            self.text_tower = ClipTextTower(model.text_model, model.text_projection)
            self.embed_dim = int(model.config.projection_dim)
        else:
            self.image_tower = SiglipImageTower(model.vision_model)
            self.text_tower = SiglipTextTower(model.text_model)
            self.embed_dim = int(model.config.text_config.projection_size)
        self.longest_text = int(model.config.text_config.max_position_embeddings)
        self.logit_scale = math.exp(model.logit_scale.item())
        self.freeze()

    @classmethod
    def load(cls, name: str) -> HuggingFace:
        """Load a model by hub name or local folder."""
        from transformers import AutoModel

        path = library.local_path(name)
        config = library.load_config(path, SUPPORTED, cls.examples)
        tokenizer = library.load_tokenizer(path, int(config.text_config.vocab_size))
        preprocessing = read_preprocessing(library.load_image_settings(path), config, name)
        return cls(f"hf:{name}", library.load_model(AutoModel, path), tokenizer, preprocessing)

    @classmethod
    def check(cls, name: str) -> None:
        """Read only the configuration, so that a wrong name is found before anything else."""
        library.load_config(library.local_path(name), SUPPORTED, cls.examples)

    def modules(self) -> Iterator[nn.Module]:
        """Return the whole model."""
        yield self.model

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize; CLIP's causal text is cut after the longest end-of-text token, SigLIP's keeps its full length."""
        # SigLIP was trained on lower case; not every checkpoint's tokenizer does it by itself.
        encoded = self.tokenizer(
            list(texts) if self.is_clip else [text.lower() for text in texts],
            padding="longest" if self.is_clip else "max_length",
            truncation=True,
            max_length=self.longest_text,
            return_attention_mask=True,
            return_tensors="pt",
        )
        ids = encoded["input_ids"].to(self.device)
        return Tokens(ids, encoded["attention_mask"].bool().to(self.device))


def read_preprocessing(settings: dict[str, Any], config: Any, name: str) -> Preprocessing:
    """Translate preprocessor_config.json; what it does not say follows the model family."""
    is_clip, expected = config.model_type == "clip", _model_side(settings, config)
    size, crop = settings.get("size"), settings.get("crop_size")
    side = (_side(crop) if settings.get("do_center_crop", is_clip) else 0) or _side(size) or expected
    if side != expected:
        raise ModelError(
            f"The preprocessing of {name!r} gives images of {side} pixels, expected {expected}, which the model takes. "
            "Correct preprocessor_config.json."
        )
    keeps_shape = is_clip if size is None else isinstance(size, int) or "shortest_edge" in size
    normalizes = settings.get("do_normalize", True)
    mean, std = (settings.get(f"image_{part}") for part in ("mean", "std"))
    return Preprocessing(
        image_size=side,
        resize=(_side(size) or side) if keeps_shape else 0,
        resample=_resample(settings.get("resample", 2 if config.model_type == "siglip2" else 3)),
        mean=tuple(mean or (CLIP_MEAN if is_clip else HALF)) if normalizes else (0.0, 0.0, 0.0),
        std=tuple(std or (CLIP_STD if is_clip else HALF)) if normalizes else (1.0, 1.0, 1.0),
    )


def _resample(number: Any) -> Resample:
    if number not in RESAMPLE:
        raise ModelError(f"Unknown resample {number!r} in preprocessor_config.json, expected one of {RESAMPLE}.")
    return RESAMPLE[number]


def _side(size: Any) -> int:
    if isinstance(size, dict):
        return int(size.get("shortest_edge") or size.get("height") or 0)
    return int(size or 0)


def _model_side(settings: dict[str, Any], config: Any) -> int:
    vision = config.vision_config
    if config.model_type != "siglip2":
        return int(vision.image_size)
    # Flexible models take any shape of at most so many patches: the square of them, so that images make one batch.
    return int(math.isqrt(settings.get("max_num_patches") or vision.num_patches) * vision.patch_size)
