"""Models of the open_clip library, as `model/pretrained tag` or `model/weights.safetensors` (extra: open_clip)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from captune.backbones import _transformers_io as library
from captune.backbones._open_clip_towers import OpenClipImageTower, OpenClipTextTower, SealedTower
from captune.backbones.base import Backbone, Side, TextTower, Tokens, Tower
from captune.core.errors import ModelError, missing_extra, nearest
from captune.core.files import is_file
from captune.data.views import Preprocessing


class OpenClip(Backbone):
    """A model of the open_clip library; vision transformers carry prompts, ResNets and timm towers do not."""

    examples: ClassVar[tuple[str, ...]] = (
        "ViT-B-32/laion2b_s34b_b79k",
        "ViT-B-32/openai",
        "ViT-B-16/datacomp_xl_s13b_b90k",
        "ViT-L-14/laion2b_s32b_b82k",
        "RN50/openai",
    )

    def __init__(self, name: str, model: Any, tokenizer: Any, config: dict[str, Any]) -> None:
        self.identifier, self.model, self.tokenizer = f"open_clip:{name}", model, tokenizer
        self.embed_dim = int(config["embed_dim"])
        sides = _prompt_towers(config)
        self.image_tower: Tower = (
            OpenClipImageTower(model.visual) if "image" in sides else SealedTower(model.encode_image, self.embed_dim)
        )
        self.text_tower: TextTower = (
            _text_tower(model) if "text" in sides else SealedTower(model.encode_text, self.embed_dim)
        )
        self.preprocessing = read_preprocessing(model.visual.preprocess_cfg, name)
        self.logit_scale = float(model.logit_scale.detach().exp())
        self.freeze()

    @classmethod
    def load(cls, name: str) -> OpenClip:
        """Load a model with downloaded weights, or with a local safetensors file."""
        open_clip = _library()
        model_name, weights, config = _find(name)
        library.quiet()
        # Weights were trained with one activation; the name of the architecture does not always say which.
        quick = bool(open_clip.get_pretrained_cfg(model_name, weights).get("quick_gelu"))
        try:
            model = open_clip.create_model(
                model_name, pretrained=weights, force_quick_gelu=quick, require_pretrained=True, weights_only=True
            )
            tokenizer = open_clip.get_tokenizer(model_name)
        except Exception as error:  # open_clip, the hub, torch and safetensors have no common ancestor
            raise ModelError(
                f"The weights {weights!r} of {model_name!r} cannot be loaded: {str(error).splitlines()[0][:200]} "
                "Check the connection (HF_HUB_OFFLINE must not be 1 to download) and the file."
            ) from error
        return cls(name, model, tokenizer, config)

    @classmethod
    def check(cls, name: str) -> None:
        """Look the model and its weights up in open_clip's lists."""
        _library()
        _find(name)

    @classmethod
    def prompt_towers(cls, name: str) -> frozenset[Side]:
        """Read from the architecture's configuration which towers are transformers with a seam."""
        _library()
        return _prompt_towers(_find(name)[2])

    def modules(self) -> Iterator[nn.Module]:
        """Return the whole model."""
        yield self.model

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize; causal text is cut after the longest end-of-text token."""
        ids = self.tokenizer(list(texts)).to(self.device)
        if not isinstance(self.text_tower, OpenClipTextTower):
            return Tokens(ids, torch.ones_like(ids, dtype=torch.bool))
        ids = ids[:, : self.text_tower.needed_length(ids)]
        positions = torch.arange(ids.shape[1], device=ids.device)
        return Tokens(ids, positions <= self.text_tower.end_position(ids)[:, None])


def read_preprocessing(settings: dict[str, Any], name: str) -> Preprocessing:
    """Translate open_clip's preprocessing."""
    size = settings["size"]
    sides = {size} if isinstance(size, int) else set(size)
    mode = settings.get("resize_mode", "shortest")
    if len(sides) != 1 or mode not in ("shortest", "squash"):
        raise ModelError(
            f"{name!r} takes images of size {size} resized by {mode!r}, expected a square resized by 'shortest' or "
            "'squash'. Choose another model."
        )
    side = int(sides.pop())
    return Preprocessing(
        image_size=side,
        resize=side if mode == "shortest" else 0,
        resample=settings["interpolation"],
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
    )


def _library() -> Any:
    if find_spec("open_clip") is None:
        raise missing_extra("open_clip_torch", "open_clip")
    try:
        import open_clip
    except Exception as error:  # a torchvision built for another torch raises RuntimeError
        raise ModelError(
            f"The package open_clip is installed but does not import: {str(error).splitlines()[0]} "
            "Install the torchvision release that belongs to your torch: pip install --upgrade torch torchvision"
        ) from error
    return open_clip


def _find(name: str) -> tuple[str, str, dict[str, Any]]:
    """Return the architecture, its weights (a tag or a file) and its configuration, or say what is wrong."""
    open_clip = _library()
    model_name, _, weights = name.partition("/")
    known = open_clip.list_models()
    if model_name not in known:
        raise ModelError(
            f"No architecture {model_name!r} in open_clip.{nearest(model_name, known)} An id reads "
            "open_clip:model/pretrained, for example 'open_clip:ViT-B-32/laion2b_s34b_b79k'."
        )
    config: dict[str, Any] = open_clip.get_model_config(model_name)
    tags = open_clip.list_pretrained_tags_by_model(model_name)
    if weights and open_clip.is_pretrained_cfg(model_name, weights):
        return model_name, weights, config
    path = Path(library.local_path(weights))
    if weights and is_file(path) and path.suffix == ".safetensors":
        return model_name, str(path), config
    found = f"the file {weights!r} is not a safetensors file" if is_file(path) else f"there are no weights {weights!r}"
    raise ModelError(
        f"For {model_name!r} {found}.{nearest(weights, tags)} Available: {', '.join(tags) or 'none'}; "
        f"or a local file: open_clip:{model_name}/path/to/weights.safetensors"
    )


def _prompt_towers(config: dict[str, Any]) -> frozenset[Side]:
    vision, text = config["vision_cfg"], config["text_cfg"]
    sides: list[Side] = []
    is_transformer = isinstance(vision.get("layers", 12), int) and not vision.get("timm_model_name")
    if is_transformer and not vision.get("attentional_pool"):
        sides.append("image")
    if not text.get("hf_model_name") and not text.get("embed_cls"):
        sides.append("text")
    return frozenset(sides)


def _text_tower(model: Any) -> OpenClipTextTower:
    if hasattr(model, "token_embedding"):
        return OpenClipTextTower(model, model.text_pool_type, model.text_eos_id)
    return OpenClipTextTower(model.text, model.text.pool_type, model.text.eos_id)
