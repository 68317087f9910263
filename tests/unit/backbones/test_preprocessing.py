"""The weak view equals the image processors of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from models import image_processor, siglip2_patches
from PIL import Image

from captune.backbones.base import Backbone
from captune.backbones.hf import read_preprocessing
from captune.core.errors import ModelError
from captune.data.views import Preprocessing, weak_view

SIZES = [(57, 41), (41, 57), (33, 100), (100, 33), (32, 32), (31, 200), (7, 5), (1, 9), (640, 481)]


def picture(size: tuple[int, int]) -> Image.Image:
    width, height = size
    noise = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def view(image: Image.Image, preprocessing: Preprocessing) -> torch.Tensor:
    return preprocessing.normalize(weak_view(image, preprocessing)[None])


def clip(**vision: Any) -> SimpleNamespace:
    return SimpleNamespace(model_type="clip", vision_config=SimpleNamespace(image_size=32, **vision))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("kind", "processor"),
    [("clip", image_processor("clip")), ("siglip", image_processor("siglip")), ("siglip2", image_processor("siglip"))],
)
def test_weak_view_equals_transformers(
    kind: str,
    processor: Any,
    size: tuple[int, int],
    backbone_of: Callable[[str], Backbone],
    model_folder: Callable[[str], Path],
) -> None:
    expected = processor.from_pretrained(model_folder(kind))(picture(size), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(view(picture(size), backbone_of(kind).preprocessing), expected, atol=1e-5, rtol=0)


def test_weak_view_of_a_square_equals_transformers_for_flexible_models(
    backbone_of: Callable[[str], Backbone], model_folder: Callable[[str], Path]
) -> None:
    processor = image_processor("siglip2").from_pretrained(model_folder("siglip_flexible"))
    expected = processor(picture((75, 75)), return_tensors="pt")
    assert expected["spatial_shapes"].tolist() == [[4, 4]]
    pixels = view(picture((75, 75)), backbone_of("siglip_flexible").preprocessing)
    torch.testing.assert_close(siglip2_patches(pixels[0])[None], expected["pixel_values"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("resize", [24, 32, 45])
def test_resize_may_differ_from_the_crop(size: tuple[int, int], resize: int) -> None:
    crop = {"height": 32, "width": 32}
    settings = {"size": {"shortest_edge": resize}, "crop_size": crop, "resample": 2}
    expected = image_processor("clip")(**settings)(picture(size), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(
        view(picture(size), read_preprocessing(settings, clip(), "x")), expected, atol=1e-5, rtol=0
    )


def test_old_files_name_sizes_as_numbers() -> None:
    settings = {"size": 36, "crop_size": 32, "do_center_crop": True, "resample": 3}
    assert (read_preprocessing(settings, clip(), "x").image_size, read_preprocessing(settings, clip(), "x").resize) == (
        32,
        36,
    )


def test_what_the_file_does_not_say_follows_the_family() -> None:
    siglip = SimpleNamespace(model_type="siglip", vision_config=SimpleNamespace(image_size=32))
    flexible = SimpleNamespace(model_type="siglip2", vision_config=SimpleNamespace(num_patches=16, patch_size=8))
    own = read_preprocessing({}, clip(), "x")
    assert (own.image_size, own.resize, own.resample, own.mean[0]) == (32, 32, "bicubic", 0.48145466)
    own = read_preprocessing({}, siglip, "x")
    assert (own.image_size, own.resize, own.resample, own.mean) == (32, 0, "bicubic", (0.5, 0.5, 0.5))
    own = read_preprocessing({}, flexible, "x")
    assert (own.image_size, own.resize, own.resample) == (32, 0, "bilinear")
    assert read_preprocessing({"max_num_patches": 64}, flexible, "x").image_size == 64


def test_pixels_are_left_as_they_are_without_normalization() -> None:
    own = read_preprocessing({"do_normalize": False}, clip(), "x")
    assert (own.mean, own.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def test_preprocessing_that_the_model_cannot_take_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'some/model'.*48.*32"):
        read_preprocessing({"size": {"shortest_edge": 48}, "crop_size": 48}, clip(), "some/model")
    with pytest.raises(ModelError, match="9"):
        read_preprocessing({"resample": 9}, clip(), "some/model")
