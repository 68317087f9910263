"""CLIP, SigLIP and SigLIP 2 models in transformers' format, from the Hugging Face hub or a local folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from captune.backbones import _hub
from captune.backbones.base import Backbone, TextTower, Tokens, Tower, scale_of
from captune.core import registry
from captune.core.errors import ModelError
from captune.data.views import Preprocessing, Resample

SUPPORTED = ("clip", "siglip", "siglip2")
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESAMPLE: dict[int, Resample] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def image_tower(model: Any, encode: Callable[[Tensor, Tensor | None], Tensor], *heads: nn.Module) -> Tower:
    """Return the tower of a vision transformer; CLIP's has a norm before its first layer."""
    return Tower(encode, (model, *heads), int(model.config.hidden_size), entries_of(model, "pre_layrnorm"))


def entries_of(model: Any, norm: str = "") -> list[nn.Module]:
    """Return what tokens enter at each depth of a transformer, whose norm at the entry has this name."""
    encoder = model.encoder if hasattr(model, "encoder") else model
    layers = encoder.layer if hasattr(encoder, "layer") else encoder.layers
    return [getattr(model, norm, layers[0]), *layers[1:]]


def _patches(model: Any, pixels: Tensor) -> tuple[Tensor, None, Tensor]:
    """Return what the flexible SigLIP 2 models expect: the image cut into patches, no mask, and their number."""
    images, channels, height, width = pixels.shape
    size = int(model.config.patch_size)
    grid = pixels.reshape(images, channels, height // size, size, width // size, size)
    patches = grid.permute(0, 2, 4, 3, 5, 1).reshape(images, -1, channels * size * size)
    return patches, None, torch.tensor([[height // size, width // size]]).expand(images, 2)


class HuggingFace(Backbone):
    """A transformers CLIP, SigLIP or SigLIP 2 model."""

    supported: ClassVar[tuple[str, ...]] = SUPPORTED
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
        text, vision = model.text_model, model.vision_model
        heads = (model.visual_projection, model.text_projection) if self.is_clip else (nn.Identity(), nn.Identity())
        is_flexible = isinstance(getattr(vision.embeddings, "patch_embedding", None), nn.Linear)

        def encode_image(pixels: Tensor, mask: Tensor | None) -> Tensor:
            return heads[0](vision(*(_patches(vision, pixels) if is_flexible else (pixels,))).pooler_output)

        def encode_text(ids: Tensor, mask: Tensor | None) -> Tensor:
            # No mask: CLIP's texts are causal, so padding after the end is not seen; SigLIP was trained to see it.
            return heads[1](text(ids).pooler_output)

        self.image_tower = image_tower(vision, encode_image, heads[0])
        self.text_tower = TextTower(
            encode_text,
            (text, heads[1]),
            int(text.config.hidden_size),
            entries_of(text),
            words=text.embeddings.token_embedding,
            positions=lambda: text.embeddings.position_embedding.weight,
            prompt_start=int(self.is_clip),
            padding_matters=not self.is_clip,
        )
        self.embed_dim = int(model.config.projection_dim if self.is_clip else model.config.text_config.projection_size)
        self.longest_text = int(model.config.text_config.max_position_embeddings)
        self.logit_scale = scale_of(model.logit_scale.item(), identifier)
        self.freeze()

    @classmethod
    def load(cls, name: str) -> HuggingFace:
        """Load a model by hub name or local folder."""
        path = _hub.local_path(name)
        config = _hub.load_config(path, SUPPORTED, cls.examples)
        tokenizer = _hub.load_tokenizer(path, int(config.text_config.vocab_size))
        preprocessing = read_preprocessing(_hub.load_image_settings(path), config, name)
        return cls(f"hf:{name}", _hub.load_model(config, path), tokenizer, preprocessing)

    @classmethod
    def around(cls, model: Any, processor: Any) -> HuggingFace:
        """Return a backbone around a model in memory, with its processor."""
        kind, name = model.config.model_type, str(getattr(model, "name_or_path", ""))
        if kind not in SUPPORTED:
            raise ModelError(f"Cannot use a {kind!r} model as a backbone, expected one of: {', '.join(SUPPORTED)}.")
        tokenizer, image_processor = (getattr(processor, part, None) for part in ("tokenizer", "image_processor"))
        if tokenizer is None or image_processor is None:
            raise ModelError(
                "Pass the model's processor, which has a tokenizer and an image processor: "
                "captune.wrap(model, AutoProcessor.from_pretrained(...))"
            )
        preprocessing = read_preprocessing(image_processor.to_dict(), model.config, name or kind)
        return cls(f"hf:{name}" if name else f"{registry.IN_MEMORY}{kind}", model, tokenizer, preprocessing)

    @classmethod
    def check(cls, name: str) -> None:
        """Read only the configuration, so that a wrong name is found before anything else."""
        _hub.load_config(_hub.local_path(name), cls.supported, cls.examples)

    @classmethod
    def files(cls, name: str) -> Sequence[Path]:
        """Return the files of the folder, or of the copy of the hub's model on this machine."""
        return _hub.files_of(_hub.local_path(name))

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize; CLIP's causal texts are padded to the longest one, SigLIP's to the full length."""
        # SigLIP was trained on lower case, but not every checkpoint's tokenizer converts texts itself.
        encoded = self.tokenizer(
            list(texts) if self.is_clip else [text.lower() for text in texts],
            padding="longest" if self.is_clip else "max_length",
            truncation=True,
            max_length=self.longest_text,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return Tokens(encoded["input_ids"].to(self.device), encoded["attention_mask"].bool().to(self.device))


def read_preprocessing(settings: dict[str, Any], config: Any, name: str) -> Preprocessing:
    """Translate preprocessor_config.json; missing values are those of the model family."""
    is_clip, expected = config.model_type == "clip", _input_side(settings, config)
    has_texts = config.model_type in SUPPORTED
    mean, std = (CLIP_MEAN, CLIP_STD) if is_clip else (HALF, HALF) if has_texts else (IMAGENET_MEAN, IMAGENET_STD)
    size, crop = settings.get("size"), settings.get("crop_size")
    side = (_side(crop) if settings.get("do_center_crop", is_clip) else 0) or _side(size) or expected
    if side != expected and has_texts:  # image models are used at other sizes than they were trained with
        raise ModelError(
            f"The preprocessing of {name!r} makes images of {side} pixels, but the model expects {expected}. "
            "Correct preprocessor_config.json."
        )
    keeps_shape = is_clip if size is None else isinstance(size, int) or "shortest_edge" in size
    normalizes = settings.get("do_normalize", True)
    resample = settings.get("resample", 2 if config.model_type == "siglip2" else 3)
    if resample not in RESAMPLE:
        raise ModelError(f"Unknown resample {resample!r} in preprocessor_config.json, expected one of {RESAMPLE}.")
    return Preprocessing(
        image_size=side,
        resize=(_side(size) or side) if keeps_shape else 0,
        resample=RESAMPLE[resample],
        mean=tuple(settings.get("image_mean") or mean) if normalizes else (0.0, 0.0, 0.0),
        std=tuple(settings.get("image_std") or std) if normalizes else (1.0, 1.0, 1.0),
    )


def _side(size: Any) -> int:
    if isinstance(size, dict):
        return int(size.get("shortest_edge") or size.get("height") or 0)
    return int(size or 0)


def _input_side(settings: dict[str, Any], config: Any) -> int:
    if config.model_type not in SUPPORTED:
        found = getattr(config, "image_size", None) or 224
        return min(224, found if isinstance(found, int) else min(found))  # DINOv2 was trained at 518, but used at 224
    vision = config.vision_config
    if config.model_type != "siglip2":
        return int(vision.image_size)
    # Flexible models take any shape up to a number of patches; squares of one size can be batched.
    return int(math.isqrt(settings.get("max_num_patches") or vision.num_patches) * vision.patch_size)
