"""Unedited features equal those of the library the model comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import MAKERS, SIDE, siglip2_patches
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, normalize
from transformers import AutoModel

from captune.backbones.base import Backbone, Tokens

Folders = Callable[[str], Path]
Backbones = Callable[[str], Backbone]

TEXTS = ["a photo of a cat", "", "a striped bird in the field, with a red tree", "ünï 猫 x"]
ONE_MODEL = [kind for kind in MAKERS if not kind.startswith("dual")]


def images(count: int = 3) -> Tensor:
    return torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(7))


def reference(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder).eval()


def features(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


@pytest.mark.parametrize("kind", [kind for kind in ONE_MODEL if kind != "siglip_flexible"])
def test_image_features_equal_transformers(kind: str, backbone_of: Backbones, model_folder: Folders) -> None:
    expected = features(reference(model_folder(kind)).get_image_features(pixel_values=images()))
    torch.testing.assert_close(backbone_of(kind).image_features(images()), expected.detach(), atol=1e-5, rtol=0)


def test_image_features_equal_transformers_for_flexible_models(backbone_of: Backbones, model_folder: Folders) -> None:
    patches = torch.stack([siglip2_patches(image) for image in images()])
    shapes = torch.tensor([[4, 4]] * 3)
    expected = reference(model_folder("siglip_flexible")).get_image_features(
        pixel_values=patches, pixel_attention_mask=torch.ones(3, 16, dtype=torch.long), spatial_shapes=shapes
    )
    actual = backbone_of("siglip_flexible").image_features(images())
    torch.testing.assert_close(actual, features(expected).detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ONE_MODEL)
def test_text_features_equal_transformers(kind: str, backbone_of: Backbones, model_folder: Folders) -> None:
    backbone = backbone_of(kind)
    tokens = backbone.tokenize(TEXTS)
    # SigLIP's own pipeline passes no mask: padding is seen, as in training.
    mask = {"attention_mask": tokens.mask.long()} if kind.startswith("clip") else {}
    expected = features(reference(model_folder(kind)).get_text_features(input_ids=tokens.ids, **mask))
    torch.testing.assert_close(backbone.text_features(tokens), expected.detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["clip", "clip_old"])
def test_clip_text_cut_after_its_end_equals_the_full_77_tokens(kind: str, backbone_of: Backbones) -> None:
    backbone = backbone_of(kind)
    cut = backbone.tokenize(TEXTS)
    encoded = backbone.tokenizer(TEXTS, padding="max_length", max_length=77, return_tensors="pt")  # type: ignore[attr-defined]
    full = Tokens(encoded["input_ids"], encoded["attention_mask"].bool())
    assert cut.ids.shape[1] < full.ids.shape[1] == 77
    torch.testing.assert_close(backbone.text_features(cut), backbone.text_features(full), atol=1e-5, rtol=0)


def test_clip_text_ends_at_its_first_end_token(tmp_path: Path) -> None:
    from models import tiny_clip

    from captune.backbones.hf import HuggingFace

    backbone = HuggingFace.load(str(tiny_clip(tmp_path / "clip")))
    tokens = backbone.tokenize(["a photo"])
    end = tokens.ids.max()
    tokens.ids[0, 1] = end  # the end token, once more, at position 1
    features = backbone.text_features(tokens)
    tokens.ids[0, 2] = end
    assert torch.equal(backbone.text_features(tokens), features)  # what comes after the first end does not count


@pytest.mark.parametrize("kind", ["siglip", "siglip2", "siglip_flexible"])
def test_siglip_text_has_full_length_lower_case_and_padding_on_the_right(kind: str, backbone_of: Backbones) -> None:
    backbone = backbone_of(kind)
    tokens = backbone.tokenize(["A PHOTO", "a photo"])
    assert tokens.ids.shape == (2, 16)
    assert torch.equal(tokens.ids[0], tokens.ids[1])
    assert tokens.mask[0].int().diff().max() <= 0  # real tokens come first


@pytest.mark.parametrize("vision", ["dinov2", "vit"])
def test_dual_features_equal_the_documented_formula(vision: str, backbone_of: Backbones, model_folder: Folders) -> None:
    folder, backbone = model_folder(f"dual_{vision}"), backbone_of(f"dual_{vision}")
    weights = load_file(folder / "projection.safetensors")
    options = {} if vision == "dinov2" else {"interpolate_pos_encoding": True}
    states = reference(folder / "vision")(pixel_values=images(), **options).last_hidden_state[:, 0]
    expected = linear(normalize(states, dim=-1), weights["visual_projection.weight"], weights["visual_projection.bias"])
    torch.testing.assert_close(backbone.image_features(images()), expected.detach(), atol=1e-5, rtol=0)

    tokens = backbone.tokenize(TEXTS)
    assert not tokens.mask.all()  # some texts are padded
    model = reference(folder / "text")
    for position, text in enumerate(TEXTS):
        alone = backbone.tokenize([text])
        states = model(input_ids=alone.ids).last_hidden_state.mean(dim=1)
        expected = linear(normalize(states, dim=-1), weights["text_projection.weight"])
        torch.testing.assert_close(
            backbone.text_features(tokens)[position : position + 1], expected.detach(), atol=1e-5, rtol=0
        )


def test_dual_options_change_pooling_and_norm(tmp_path: Path) -> None:
    from models import tiny_dual

    from captune.backbones.dual import DualEncoder

    text = {"folder": "text", "pooling": "cls", "max_length": 99}
    folder = tiny_dual(tmp_path / "dual", text=text, normalize_before_projection=False)
    backbone = DualEncoder.load(str(folder))
    tokens = backbone.tokenize(["a photo of a cat"])
    states = reference(folder / "text")(input_ids=tokens.ids).last_hidden_state[:, 0]
    expected = linear(states, load_file(folder / "projection.safetensors")["text_projection.weight"])
    torch.testing.assert_close(backbone.text_features(tokens), expected.detach(), atol=1e-5, rtol=0)
    # The tower has 32 positions, whatever the file says.
    assert backbone.tokenize(["cat " * 99]).ids.shape == (1, 32)


@pytest.mark.parametrize("kind", list(MAKERS))
def test_weights_are_fp32_frozen_and_in_evaluation_mode(kind: str, backbone_of: Backbones) -> None:
    for module in backbone_of(kind).modules():
        assert not module.training
        for parameter in module.parameters():
            assert parameter.dtype == torch.float32
            assert not parameter.requires_grad


def test_weights_stored_in_half_precision_are_computed_in_fp32(tmp_path: Path) -> None:
    from models import tiny_clip
    from transformers import CLIPModel

    from captune.backbones.hf import HuggingFace

    folder = tiny_clip(tmp_path / "clip")
    CLIPModel.from_pretrained(folder).half().save_pretrained(folder)
    backbone = HuggingFace.load(str(folder))
    assert {p.dtype for m in backbone.modules() for p in m.parameters()} == {torch.float32}
    assert backbone.encode_image(images(1)).dtype == torch.float32


@pytest.mark.parametrize("vision", ["dinov2", "vit"])
def test_fingerprint_is_the_same_whenever_a_model_without_pooler_is_loaded(
    vision: str, backbone_of: Backbones, model_folder: Folders
) -> None:
    from captune.backbones.dual import DualEncoder

    again = DualEncoder.load(str(model_folder(f"dual_{vision}")))
    assert again.fingerprint() == backbone_of(f"dual_{vision}").fingerprint()
