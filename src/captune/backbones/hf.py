"""CLIP, SigLIP and SigLIP 2 models in transformers' format, from the Hugging Face hub or a local folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from inspect import signature
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
RESAMPLE: dict[int, Resample] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def run_layer(layer: nn.Module, tokens: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Run a layer of any supported transformers; in version 4 it returns a tuple, and CLIP's takes a second mask."""
    if not _takes_two_masks(type(layer)):  # type: ignore[arg-type]
        output = layer(tokens, mask, is_causal=True) if is_causal else layer(tokens, mask)
        return output[0] if isinstance(output, tuple) else output
    causal = None
    if is_causal:
        length = tokens.shape[1]
        lowest = torch.finfo(tokens.dtype).min
        causal = tokens.new_full((length, length), lowest).triu(1).expand(len(tokens), 1, length, length)
    return layer(tokens, mask, causal)[0]


@cache
def _takes_two_masks(layer: Any) -> bool:
    return "causal_attention_mask" in signature(layer.forward).parameters


class TransformersTower(Tower):
    """A tower of the transformers library, with the names that most of its models use."""

    def __init__(self, model: Any, projection: nn.Module) -> None:
        self.model, self.projection, self.width = model, projection, int(model.config.hidden_size)
        encoder = model.encoder if hasattr(model, "encoder") else model
        self.layers = encoder.layer if hasattr(encoder, "layer") else encoder.layers

    def enter(self, inputs: Tensor) -> Tensor:
        """Return token embeddings with positions."""
        return self.model.embeddings(inputs)

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Apply a layer in which every token attends to every other."""
        return run_layer(layer, tokens)


class ClipImageTower(TransformersTower):
    """The image tower of CLIP: a norm before the first layer; the class token is the feature."""

    def entry_norm(self, tokens: Tensor) -> Tensor:
        """Apply CLIP's norm before the first layer."""
        return self.model.pre_layrnorm(tokens)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Project the normalized class token."""
        return self.projection(self.model.post_layernorm(tokens[:, 0]))


class SiglipImageTower(TransformersTower):
    """The image tower of SigLIP and SigLIP 2: no class token; an attention head pools all tokens."""

    def enter(self, inputs: Tensor) -> Tensor:
        """Return patch tokens with positions; the flexible SigLIP 2 models expect the image cut into patches."""
        if not isinstance(self.model.embeddings.patch_embedding, nn.Linear):
            return self.model.embeddings(inputs)
        images, channels, height, width = inputs.shape
        size = int(self.model.config.patch_size)
        grid = inputs.reshape(images, channels, height // size, size, width // size, size)
        patches = grid.permute(0, 2, 4, 3, 5, 1).reshape(images, -1, channels * size * size)
        shapes = torch.tensor([[height // size, width // size]]).expand(images, 2)
        return self.model.embeddings(patches, shapes)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Pool all tokens, including prompts, with the attention head."""
        return self.projection(self.model.post_layernorm(tokens))


class ClipTextTower(TransformersTower, TextTower):
    """The text tower of CLIP: causal; the end-of-text token is the feature."""

    padding_matters = False

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Apply a causal layer, in which padding after the end needs no mask."""
        return run_layer(layer, tokens, is_causal=True)

    def leave(self, tokens: Tensor, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Project the normalized token at the end of each text."""
        chosen = tokens[torch.arange(len(tokens), device=tokens.device), self.end_position(inputs)]
        return self.projection(self.model.final_layer_norm(chosen))

    def end_position(self, ids: Tensor) -> Tensor:
        """Return where each text ends; old checkpoints declare a wrong end token, there it is the largest id."""
        eos = int(self.model.config.eos_token_id)
        return ids.argmax(dim=-1) if eos == 2 else (ids == eos).int().argmax(dim=-1)

    def word_embedding(self, ids: Tensor) -> Tensor:
        """Return word embeddings without positions."""
        return self.model.embeddings.token_embedding(ids)

    def position_embedding(self, start: int, stop: int) -> Tensor:
        """Return the position embeddings."""
        return self.model.embeddings.position_embedding.weight[start:stop]


class SiglipTextTower(ClipTextTower):
    """The text tower of SigLIP and SigLIP 2: not causal; the last token (often padding) is the feature."""

    prompt_start = 0
    padding_matters = True

    def pass_layer(self, layer: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Apply a layer without a mask: SigLIP was trained to attend to padding too."""
        return run_layer(layer, tokens)

    def end_position(self, ids: Tensor) -> Tensor:
        """Return the last position of the unedited text."""
        return torch.full((len(ids),), ids.shape[1] - 1, device=ids.device)


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
            self.image_tower = SiglipImageTower(model.vision_model, model.vision_model.head)
            self.text_tower = SiglipTextTower(model.text_model, model.text_model.head)
            self.embed_dim = int(model.config.text_config.projection_size)
        self.longest_text = int(model.config.text_config.max_position_embeddings)
        self.logit_scale = scale_of(model.logit_scale.item(), identifier)
        self.freeze()

    @classmethod
    def load(cls, name: str) -> HuggingFace:
        """Load a model by hub name or local folder."""
        from transformers import AutoModel

        path = _hub.local_path(name)
        config = _hub.load_config(path, SUPPORTED, cls.examples)
        tokenizer = _hub.load_tokenizer(path, int(config.text_config.vocab_size))
        preprocessing = read_preprocessing(_hub.load_image_settings(path), config, name)
        return cls(f"hf:{name}", _hub.load_model(AutoModel, path), tokenizer, preprocessing)

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
        _hub.load_config(_hub.local_path(name), SUPPORTED, cls.examples)

    @classmethod
    def files(cls, name: str) -> Sequence[Path]:
        """Return the files of the folder, or of the copy of the hub's model on this machine."""
        return _hub.files_of(_hub.local_path(name))

    def portable_id(self) -> str:
        """Return the id with an absolute folder."""
        return _hub.with_absolute_folder(self.identifier)

    def modules(self) -> Iterator[nn.Module]:
        """Return the whole model."""
        yield self.model

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
    size, crop = settings.get("size"), settings.get("crop_size")
    side = (_side(crop) if settings.get("do_center_crop", is_clip) else 0) or _side(size) or expected
    if side != expected:
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
        mean=tuple(settings.get("image_mean") or (CLIP_MEAN if is_clip else HALF)) if normalizes else (0.0, 0.0, 0.0),
        std=tuple(settings.get("image_std") or (CLIP_STD if is_clip else HALF)) if normalizes else (1.0, 1.0, 1.0),
    )


def _side(size: Any) -> int:
    if isinstance(size, dict):
        return int(size.get("shortest_edge") or size.get("height") or 0)
    return int(size or 0)


def _input_side(settings: dict[str, Any], config: Any) -> int:
    vision = config.vision_config
    if config.model_type != "siglip2":
        return int(vision.image_size)
    # Flexible models take any shape up to a number of patches; squares of one size can be batched.
    return int(math.isqrt(settings.get("max_num_patches") or vision.num_patches) * vision.patch_size)
