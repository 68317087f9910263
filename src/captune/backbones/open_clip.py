"""Models of the open_clip library: `model/tag`, `model/file.safetensors` or `hf-hub:name` (extra: open_clip)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from captune.backbones.base import Backbone, Side, TextTower, Tokens, Tower, local_path, scale_of
from captune.backbones.hf import quiet
from captune.core import registry
from captune.core.errors import ModelError, missing_extra, nearest
from captune.core.files import is_file
from captune.data.views import Preprocessing

CHECK = "Check the name and the connection (downloading needs HF_HUB_OFFLINE unset)."
IN_FOLDER = "local-dir:"
WITH_CONFIG = (IN_FOLDER, "hf-hub:")
"""How names begin whose configuration is with their weights, as open_clip names them."""


class OpenClip(Backbone):
    """A model of the open_clip library; vision transformers support prompts, ResNets and timm towers do not."""

    examples: ClassVar[tuple[str, ...]] = (
        "ViT-B-32/laion2b_s34b_b79k",
        "ViT-B-32/openai",
        "ViT-B-16/datacomp_xl_s13b_b90k",
        "ViT-L-14/laion2b_s32b_b82k",
        "RN50/openai",
    )

    def __init__(self, identifier: str, model: Any, tokenizer: Any) -> None:
        self.identifier, self.model, self.tokenizer = identifier, model, tokenizer
        with torch.inference_mode():
            ids = tokenizer(["a"]).to(next(model.parameters()).device)
            self.embed_dim = int(model.encode_text(ids).shape[-1])
        vision, width, entries = model.visual, 0, list[nn.Module]()
        if hasattr(vision, "conv1") and hasattr(vision, "transformer") and getattr(vision, "attn_pool", None) is None:
            layers, width = vision.transformer.resblocks, int(vision.conv1.out_channels)
            entries = [layers[0] if isinstance(vision.ln_pre, nn.Identity) else vision.ln_pre, *layers[1:]]
        self.image_tower = Tower(lambda pixels, mask: model.encode_image(pixels), width, entries)
        self.text_tower, self._pooling = _text_tower(model, self.embed_dim)
        self.preprocessing = read_preprocessing(model.visual.preprocess_cfg, identifier)
        self.logit_scale = scale_of(model.logit_scale.item(), identifier)
        self.freeze()

    @classmethod
    @quiet()
    def load(cls, name: str) -> OpenClip:
        """Load a model with downloaded weights, or with a local safetensors file."""
        open_clip = _library()
        model_name, weights, _ = _find(name)
        # The activation that the weights were trained with does not always follow from the architecture name.
        quick = bool(open_clip.get_pretrained_cfg(model_name, weights).get("quick_gelu"))
        try:
            model = open_clip.create_model(
                model_name, pretrained=weights, force_quick_gelu=quick, require_pretrained=True, weights_only=True
            )
            return cls(f"open_clip:{name}", model, open_clip.get_tokenizer(model_name))
        except ModelError:
            raise
        except Exception as error:  # the errors of open_clip, the hub, torch and safetensors have no common base class
            raise ModelError(f"Cannot load {weights!r} of {model_name!r}: {repr(error)[:200]} {CHECK}") from error

    @classmethod
    def around(cls, model: Any, tokenizer: Any) -> OpenClip:
        """Return a backbone around a model in memory, with its tokenizer."""
        if not callable(tokenizer):
            raise ModelError("Pass the model's tokenizer: captune.wrap(model, open_clip.get_tokenizer(...))")
        text = model if hasattr(model, "token_embedding") else getattr(model, "text", None)
        if text is None or not hasattr(model.visual, "preprocess_cfg"):  # of CLIP's first release, for example
            raise ModelError(
                f"{type(model).__name__} does not say how its images are preprocessed: use open_clip.create_model."
            )
        return cls(f"{registry.IN_MEMORY}open_clip", model, tokenizer)

    @classmethod
    def check(cls, name: str) -> None:
        """Look up the model and its weights in open_clip's lists."""
        _find(name)

    @classmethod
    def prompt_towers(cls, name: str) -> frozenset[Side]:
        """Read from the architecture's configuration which towers prompts can enter."""
        config = _find(name)[2]
        vision, text = config["vision_cfg"], config["text_cfg"]
        sides: list[Side] = []
        is_transformer = isinstance(vision.get("layers", 12), int) and not vision.get("timm_model_name")
        if is_transformer and not vision.get("attentional_pool"):
            sides.append("image")
        if not text.get("hf_model_name") and not text.get("embed_cls"):
            sides.append("text")
        return frozenset(sides)

    def portable_id(self) -> str:
        """Return the id with an absolute path if the weights are a local file."""
        name = self.identifier.removeprefix("open_clip:")
        if name.startswith(IN_FOLDER):
            return f"open_clip:{IN_FOLDER}{Path(name.removeprefix(IN_FOLDER)).resolve()}"
        model_name, _, weights = name.partition("/")
        path = Path(local_path(weights))
        is_local = weights.endswith(".safetensors") and is_file(path)
        return f"open_clip:{model_name}/{path.resolve()}" if is_local else self.identifier

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize; causal texts are cut after the longest end-of-text token."""
        ids = self.tokenizer(list(texts)).to(self.device)
        if not self.text_tower.depth:
            return Tokens(ids, torch.ones_like(ids, dtype=torch.bool))
        ends = _end_positions(self._pooling, ids)
        if not self.text_tower.padding_matters:
            ids = ids[:, : int(ends.max()) + 1]
        return Tokens(ids, torch.arange(ids.shape[1], device=ids.device) <= ends[:, None])


def read_preprocessing(settings: dict[str, Any], name: str) -> Preprocessing:
    """Translate open_clip's preprocessing."""
    size, mode = settings["size"], settings.get("resize_mode", "shortest")
    side, *others = {size} if isinstance(size, int) else set(size)
    if others or mode not in ("shortest", "squash"):
        raise ModelError(f"{name!r} resizes images to {size} by {mode!r}, expected a square by 'shortest' or 'squash'.")
    resize, mean, std = side if mode == "shortest" else 0, tuple(settings["mean"]), tuple(settings["std"])
    return Preprocessing(side, resize, settings["interpolation"], mean, std)


def _library() -> Any:
    if find_spec("open_clip") is None:
        raise missing_extra("open_clip_torch", "open_clip")
    try:
        import open_clip
    except Exception as error:  # a torchvision built for another torch raises RuntimeError
        raise ModelError(
            f"The package open_clip is installed but cannot be imported: {str(error).splitlines()[0]} Install the "
            "torchvision release that matches torch: pip install --upgrade torch torchvision (without a GPU, add "
            "--index-url https://download.pytorch.org/whl/cpu)"
        ) from error
    return open_clip


def _find(name: str) -> tuple[str, str, dict[str, Any]]:
    """Return the architecture, its weights (a tag or a file) and its configuration."""
    open_clip = _library()
    if name.startswith(WITH_CONFIG):
        try:
            config = open_clip.get_model_config(name)
            return name, "", {**config, "vision_cfg": {**config["vision_cfg"]}, "text_cfg": {**config["text_cfg"]}}
        except Exception as error:  # of the hub, the connection or the file
            raise ModelError(f"Cannot read open_clip_config.json of {name!r}: {repr(error)[:200]} {CHECK}") from error
    model_name, _, weights = name.partition("/")
    known = open_clip.list_models()
    if model_name not in known:
        raise ModelError(
            f"No {model_name!r} in open_clip.{nearest(model_name, known)} Expected an id like {OpenClip.examples[0]!r}."
        )
    config = open_clip.get_model_config(model_name)
    tags = open_clip.list_pretrained_tags_by_model(model_name)
    if weights and open_clip.is_pretrained_cfg(model_name, weights):
        return model_name, weights, config
    path = Path(local_path(weights))
    if is_file(path) and path.suffix == ".safetensors":
        return model_name, str(path), config
    if is_file(path):
        raise ModelError(
            f"Cannot load {weights!r}: expected a safetensors file, because others can run arbitrary code when loaded. "
            "Convert weights that you trust: safetensors.torch.save_model(open_clip.create_model("
            f"{model_name!r}, pretrained={path.name!r}), {path.stem + '.safetensors'!r})"
        )
    found = f"no weights {weights!r}.{nearest(weights, tags)}" if weights else "the id names no weights."
    raise ModelError(
        f"Cannot load {model_name!r}: {found} Use open_clip:{model_name}/NAME, where NAME is one of "
        f"{', '.join(tags) or 'none'}, or a local file: open_clip:{model_name}/path/to/weights.safetensors"
    )


def _end_positions(pooling: tuple[str, int], ids: Tensor) -> Tensor:
    """Return the position of the token that represents each text."""
    how, end_id = pooling
    if how == "argmax":
        return ids.argmax(dim=-1)
    if how == "eos":
        return (ids == end_id).int().argmax(dim=-1)
    return ids.new_full((len(ids),), 0 if how == "first" else ids.shape[1] - 1)


def _text_tower(model: Any, embed_dim: int) -> tuple[TextTower, tuple[str, int]]:
    """Return the tower, how its transformer (the model itself or a part of it) pools, and its end token."""
    text = model if hasattr(model, "token_embedding") else model.text
    if not hasattr(text, "token_embedding") or getattr(text, "cls_emb", None) is not None:
        return TextTower(lambda ids, mask: model.encode_text(ids), embed_dim), ("", 0)
    pooling = (text.text_pool_type, text.text_eos_id) if text is model else (text.pool_type, text.eos_id)

    def encode(ids: Tensor, mask: Tensor | None) -> Tensor:
        """Encode like open_clip, which expects causal texts of full length although only their beginning counts."""
        length = ids.shape[1]
        hidden = None if text.attn_mask is None else text.attn_mask[:length, :length]
        states = text.transformer(text.token_embedding(ids) + text.positional_embedding[:length], attn_mask=hidden)
        chosen = states[torch.arange(len(ids), device=ids.device), _end_positions(pooling, ids)]
        feature, projection = text.ln_final(chosen), text.text_projection
        if projection is None:
            return feature
        return projection(feature) if isinstance(projection, nn.Module) else feature @ projection

    tower = TextTower(
        encode,
        int(text.token_embedding.embedding_dim),
        list(text.transformer.resblocks),
        words=text.token_embedding,
        positions=lambda: text.positional_embedding,
        prompt_start=1 if pooling[0] in ("argmax", "eos") else 0,
        padding_matters=text.attn_mask is None,
    )
    return tower, pooling
