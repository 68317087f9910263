"""CLIP, SigLIP and SigLIP 2 models in transformers' format, from the Hugging Face hub or a local folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import nn

from captune.backbones import _transformers_io as library
from captune.backbones._towers import ClipImageTower, ClipTextTower, SiglipImageTower, SiglipTextTower
from captune.backbones.base import Backbone, Tokens
from captune.data.views import Preprocessing

SUPPORTED = ("clip", "siglip", "siglip2")
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


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
        self.logit_scale = math.exp(float(model.logit_scale))
        self.freeze()

    @classmethod
    def load(cls, name: str) -> HuggingFace:
        """Load a model by hub name or local folder."""
        from transformers import AutoModel

        config = library.load_config(name, SUPPORTED, cls.examples)
        tokenizer = library.load_tokenizer(name)
        preprocessing = read_preprocessing(library.load_image_settings(name), config)
        return cls(f"hf:{name}", library.load_model(AutoModel, name), tokenizer, preprocessing)

    @classmethod
    def check(cls, name: str) -> None:
        """Read only the configuration, so that a wrong name is found before anything else."""
        library.load_config(name, SUPPORTED, cls.examples)

    def modules(self) -> Iterator[nn.Module]:
        """Return the whole model."""
        yield self.model

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize; CLIP's causal text is cut after the longest end-of-text token, SigLIP's keeps its full length."""
        encoded = self.tokenizer(
            list(texts),
            padding="longest" if self.is_clip else "max_length",
            truncation=True,
            max_length=self.longest_text,
            return_attention_mask=True,
            return_tensors="pt",
        )
        ids = encoded["input_ids"].to(self.device)
        return Tokens(ids, encoded["attention_mask"].bool().to(self.device))


def read_preprocessing(settings: dict[str, Any], config: Any) -> Preprocessing:
    """Translate preprocessor_config.json; what it does not say follows the model family."""
    is_clip = config.model_type == "clip"
    side = _side(settings.get("crop_size")) or _side(settings.get("size")) or _config_side(config)
    size = settings.get("size")
    keeps_shape = size is None if is_clip else False
    if isinstance(size, int) or (isinstance(size, dict) and "shortest_edge" in size):
        keeps_shape = True
    resize = _side(size) or side
    return Preprocessing(
        image_size=side,
        resize=resize if keeps_shape else 0,
        resample=RESAMPLE.get(settings.get("resample", 3 if is_clip else 2), "bicubic"),  # type: ignore[arg-type]
        mean=tuple(settings.get("image_mean") or (CLIP_MEAN if is_clip else HALF)),
        std=tuple(settings.get("image_std") or (CLIP_STD if is_clip else HALF)),
    )


def _side(size: Any) -> int:
    if isinstance(size, dict):
        return int(size.get("shortest_edge") or size.get("height") or 0)
    return int(size or 0)


def _config_side(config: Any) -> int:
    vision = config.vision_config
    if hasattr(vision, "num_patches"):  # SigLIP 2's flexible models: a square of all their positions
        return int(math.isqrt(vision.num_patches) * vision.patch_size)
    return int(vision.image_size)
