"""Tiny random models on disk, in the formats of real ones, so that tests need no download."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn

WORDS = (
    "a",
    "an",
    "the",
    "photo",
    "of",
    "in",
    "on",
    "with",
    "cat",
    "dog",
    "bird",
    "car",
    "tree",
    "red",
    "striped",
    "field",
)
IS_OLD = int(transformers.__version__.split(".")[0]) < 5
WIDTH, LAYERS, HEADS, SIDE, PATCH, EMBED = 32, 3, 2, 32, 8, 24


def image_processor(family: Literal["clip", "siglip", "siglip2"]) -> Any:
    """Return transformers' image processor that computes with Pillow; up to version 4 it was the plain one."""
    name = {"clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor", "siglip2": "Siglip2ImageProcessor"}[family]
    backend = "" if IS_OLD else "pil_"
    module = import_module(f"transformers.models.{family}.image_processing_{backend}{family}")
    return getattr(module, name if IS_OLD else f"{name}Pil")


def siglip2_patches(pixels: torch.Tensor) -> torch.Tensor:
    """Return the patches `(patches, values)` that transformers cuts from an image `(channels, height, width)`."""
    cut = import_module(image_processor("siglip2").__module__).convert_image_to_patches
    return torch.from_numpy(cut((pixels.permute(1, 2, 0) if IS_OLD else pixels).numpy(), PATCH))


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _clip_tokenizer(folder: Path, vocabulary: dict[str, int], merges: list[Any]) -> None:
    from transformers import CLIPTokenizerFast

    words: Any = {"vocab": vocabulary, "merges": merges}
    if IS_OLD:
        lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
        words = {
            "vocab_file": str(_write(folder / "vocab.json", json.dumps(vocabulary))),
            "merges_file": str(_write(folder / "merges.txt", "\n".join(lines) + "\n")),
        }
    CLIPTokenizerFast(**words, model_max_length=77).save_pretrained(folder)


def tiny_clip(folder: Path, seed: int = 0, old_end_token: bool = False) -> Path:
    """Write a CLIP; `old_end_token` gives it the wrong eos_token_id 2 of early checkpoints."""
    from transformers import CLIPConfig, CLIPModel

    vocabulary, merges = _word_pieces("</w>")
    vocabulary = {piece: i for i, piece in enumerate([*vocabulary, "<|startoftext|>", "<|endoftext|>"])}
    _clip_tokenizer(folder, vocabulary, merges)
    last = len(vocabulary) - 1
    special = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1} if old_end_token else _special(last - 1, last)
    config = CLIPConfig(
        text_config=_text(len(vocabulary), 77, **special),
        vision_config=_vision(image_size=SIDE),
        projection_dim=EMBED,
    )
    _save(CLIPModel(config), folder, seed)
    side = {"height": SIDE, "width": SIDE}
    image_processor("clip")(size={"shortest_edge": SIDE}, crop_size=side).save_pretrained(folder)
    return folder


def tiny_siglip(folder: Path, seed: int = 0, resample: int = 3) -> Path:
    """Write a SigLIP."""
    from transformers import SiglipConfig, SiglipModel

    size = _siglip_tokenizer(folder)
    config = SiglipConfig(
        text_config=_text(size, 16, projection_size=WIDTH, **_special(2, 1)), vision_config=_vision(image_size=SIDE)
    )
    _save(SiglipModel(config), folder, seed)
    image_processor("siglip")(size={"height": SIDE, "width": SIDE}, resample=resample).save_pretrained(folder)
    return folder


def tiny_siglip2(folder: Path, seed: int = 0) -> Path:
    """Write a SigLIP 2 of fixed resolution, which is a SigLIP with another tokenizer and a bilinear resize."""
    return tiny_siglip(folder, seed, resample=2)


def tiny_siglip_flexible(folder: Path, seed: int = 0) -> Path:
    """Write a SigLIP 2 of flexible resolution (Siglip2Model)."""
    from transformers import Siglip2Config, Siglip2Model

    size, patches = _siglip_tokenizer(folder), (SIDE // PATCH) ** 2
    config = Siglip2Config(
        text_config=_text(size, 16, projection_size=WIDTH, **_special(2, 1)), vision_config=_vision(num_patches=patches)
    )
    _save(Siglip2Model(config), folder, seed)
    image_processor("siglip2")(patch_size=PATCH, max_num_patches=patches).save_pretrained(folder)
    return folder


def tiny_dual(folder: Path, vision: Literal["dinov2", "vit"] = "dinov2", seed: int = 0, **changes: Any) -> Path:
    """Write a dual encoder; `changes` replace top-level entries of dual_encoder.json."""
    from transformers import BertConfig, BertModel, BertTokenizerFast, Dinov2Config, Dinov2Model, ViTConfig, ViTModel

    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
        *WORDS[1:],
    ]
    words: Any = {"vocab": {piece: i for i, piece in enumerate(pieces)}}
    if IS_OLD:
        words = {"vocab_file": str(_write(folder / "text" / "vocab.txt", "\n".join(pieces)))}
    BertTokenizerFast(**words).save_pretrained(folder / "text")
    text = _text(len(pieces), 32, hidden_dropout_prob=0.1, type_vocab_size=2)
    _save(BertModel(BertConfig(**text), add_pooling_layer=False), folder / "text", seed)
    # Made for 24 pixels and used at 32, as DINOv2 is: positions are interpolated.
    tower = (
        Dinov2Model(Dinov2Config(**_vision(image_size=24, mlp_ratio=2)))
        if vision == "dinov2"
        else ViTModel(ViTConfig(**_vision(image_size=24)), add_pooling_layer=False)
    )
    _save(tower, folder / "vision", seed + 1)
    layout = {
        "format": "captune-dual-encoder",
        "version": 1,
        "embed_dim": EMBED,
        "vision": {
            "folder": "vision",
            "pooling": "cls",
            "image_size": SIDE,
            "resample": "bicubic",
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
        },
        "text": {"folder": "text", "pooling": "mean", "max_length": 16},
        "projection": "projection.safetensors",
        "normalize_before_projection": True,
    }
    (folder / "dual_encoder.json").write_text(json.dumps({**layout, **changes}), encoding="utf-8")
    generator = torch.Generator().manual_seed(seed + 2)
    weights = {
        "visual_projection.weight": torch.randn(EMBED, WIDTH, generator=generator),
        "visual_projection.bias": torch.randn(EMBED, generator=generator) * 0.1,
        "text_projection.weight": torch.randn(EMBED, WIDTH, generator=generator),
        "logit_scale": torch.tensor(3.0),
    }
    save_file(weights, folder / "projection.safetensors")
    return folder


MAKERS: dict[str, Callable[[Path], Path]] = {
    "clip": tiny_clip,
    "clip_old": partial(tiny_clip, old_end_token=True),
    "siglip": tiny_siglip,
    "siglip2": tiny_siglip2,
    "siglip_flexible": tiny_siglip_flexible,
    "dual_dinov2": tiny_dual,
    "dual_vit": partial(tiny_dual, vision="vit"),
}
"""Every kind of model that a test can make here."""


def identifier(kind: str, folder: Path) -> str:
    """Return the `source:name` id of a model of this kind."""
    return f"{'dual' if kind.startswith('dual') else 'hf'}:{folder}"


def _text(vocabulary: int, longest: int, **more: Any) -> dict[str, Any]:
    return {**_tower(), "vocab_size": vocabulary, "max_position_embeddings": longest, **more}


def _vision(**more: Any) -> dict[str, Any]:
    return {**_tower(), "patch_size": PATCH, **more}


def _tower() -> dict[str, Any]:
    return {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
    }


def _special(start: int, end: int) -> dict[str, int]:
    return {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end}


def _save(model: nn.Module, folder: Path, seed: int) -> None:
    """Save with weights large enough for a mistake to show, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "logit_scale":
                parameter.fill_(4.6052)  # a scale of 100, as real models have
                continue
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.add_(1.0)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)  # type: ignore[operator]


def _siglip_tokenizer(folder: Path) -> int:
    """Write a tokenizer without a start token that ends every text with <eos> and pads with <pad>."""
    from transformers import PreTrainedTokenizerFast

    pieces, merges = _word_pieces("")
    vocabulary = {piece: i for i, piece in enumerate(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *pieces])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="right", **names).save_pretrained(folder)
    return len(vocabulary)


def _word_pieces(suffix: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return byte-level pieces and the merges that make each of WORDS one token, with and without a leading space."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(f"{letter}{suffix}" for letter in alphabet if suffix)]
    merges: list[tuple[str, str]] = []
    for word in WORDS if suffix else [f"{space}{word}" for word in WORDS for space in ("", "Ġ")]:
        left = word[0]
        for position, letter in enumerate(word[1:], start=2):
            right = f"{letter}{suffix}" if position == len(word) else letter
            if (left, right) not in merges:
                merges.append((left, right))
            left += right
    pieces += [piece for left, right in merges if (piece := left + right) not in pieces]
    return list(dict.fromkeys(pieces)), merges


def tiny_image_model(folder: Path, kind: str, seed: int = 0) -> Path:
    """Write an image model without texts: dinov2, dinov3_vit, vit or convnext."""
    if kind == "convnext":
        config = transformers.AutoConfig.for_model(kind, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    else:
        config = transformers.AutoConfig.for_model(kind, **_vision(image_size=24, mlp_ratio=2))
    _save(transformers.AutoModel.from_config(config), folder, seed)
    side = {"height": SIDE, "width": SIDE}
    image_processor("clip")(
        size={"shortest_edge": SIDE + 4}, crop_size=side, image_mean=[0.485, 0.456, 0.406]
    ).save_pretrained(folder)
    return folder
