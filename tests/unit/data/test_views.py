"""The model's own view against a literal resize and crop; the strong view's seeds, boxes and flips."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from captune.core.arrays import content_key
from captune.core.errors import ModelError
from captune.data.views import (
    Preprocessing,
    StrongView,
    WeakView,
    _random_box,
    strong_view,
    view_generator,
    weak_view,
)

HALF = (0.5, 0.5, 0.5)
CROPPED = Preprocessing(16, 16, "bicubic", HALF, HALF)
SQUEEZED = Preprocessing(16, 0, "bilinear", HALF, HALF)


def noise(width: int, height: int) -> Image.Image:
    generator = np.random.default_rng(width * 1000 + height)
    return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_the_weak_view_is_resize_and_center_crop() -> None:
    for image, size, box in (
        (noise(64, 32), (32, 16), (8, 0, 24, 16)),
        (noise(32, 67), (16, 33), (0, 8, 16, 24)),
        (noise(40, 40), (16, 16), (0, 0, 16, 16)),
    ):
        literal = np.asarray(image.resize(size, Image.Resampling.BICUBIC).crop(box))
        assert np.array_equal(weak_view(image, CROPPED), literal)
        assert np.array_equal(WeakView(CROPPED)(image, 5, content_key(b"")), literal)


def test_no_resize_length_squeezes_the_whole_image() -> None:
    image = noise(64, 20)
    assert np.array_equal(weak_view(image, SQUEEZED), np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR)))


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (2, 65), (1, 1)])
def test_very_long_images_need_little_memory(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (10, 20, 30))
    assert (weak_view(image, CROPPED) == (10, 20, 30)).all()
    assert weak_view(image, CROPPED).shape == (16, 16, 3)


def test_the_middle_of_a_very_long_image_is_seen() -> None:
    image = Image.new("RGB", (4, 1000), (0, 0, 0))
    image.paste((255, 255, 255), (0, 490, 4, 510))
    assert weak_view(image, CROPPED).mean() > 200


def test_normalizing_matches_the_formula() -> None:
    preprocessing = Preprocessing(2, 2, "nearest", (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 2, 3), dtype=np.uint8)
    got = preprocessing.normalize(pixels).numpy()
    expected = (pixels / 255.0 - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 0.6, 0.7])
    assert got.dtype == np.float32
    assert np.allclose(got, expected.transpose(0, 3, 1, 2), atol=1e-6)


@pytest.mark.parametrize(
    "values", [(0, 16, "bicubic", HALF, HALF), (16, -1, "bicubic", HALF, HALF), (16, 16, "cubic", HALF, HALF)]
)
def test_impossible_preprocessing_is_refused(values: tuple) -> None:
    with pytest.raises(ModelError):
        Preprocessing(*values)


def test_the_strong_view_is_the_same_for_the_same_seed_epoch_and_image() -> None:
    image = noise(50, 40)

    def view(seed: int, epoch: int, position: int) -> bytes:
        return strong_view(image, CROPPED, view_generator(seed, epoch, position)).tobytes()

    assert view(1, 2, 3) == view(1, 2, 3)
    assert len({view(1, 2, 3), view(0, 2, 3), view(1, 0, 3), view(1, 2, 0), view(2, 1, 3), view(3, 2, 1)}) == 6


def test_a_cached_strong_view_depends_on_content_and_number_only() -> None:
    image, content, other = noise(50, 40), content_key(b"a photograph"), content_key(b"another one")
    view = StrongView(CROPPED, 1)(image, 3, content)
    assert np.array_equal(view, StrongView(CROPPED, 1)(image, 99, content))
    assert not np.array_equal(view, StrongView(CROPPED, 2)(image, 3, content))
    assert not np.array_equal(view, StrongView(CROPPED, 1)(image, 3, other))


def test_the_strong_view_without_crop_is_the_whole_image() -> None:
    image = noise(40, 40)
    whole = np.asarray(image.resize((16, 16), Image.Resampling.BICUBIC))
    for seed in range(9):
        view = strong_view(image, CROPPED, view_generator(seed, 0, 0), smallest_area=1.0)
        assert np.array_equal(view, whole) or np.array_equal(view, whole[:, ::-1])


def test_half_of_the_strong_views_are_flipped() -> None:
    image = Image.linear_gradient("L").rotate(90).convert("RGB")  # one side dark, the other light
    views = [strong_view(image, CROPPED, view_generator(0, 0, i)) for i in range(200)]
    rising = sum(float(view[:, -1].mean()) > float(view[:, 0].mean()) for view in views)
    assert 70 <= rising <= 130


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 10_000))
def test_a_random_box_lies_inside_and_has_a_moderate_shape(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = _random_box((width, height), np.random.default_rng(seed), 0.08)
    assert 0 <= left < right <= width + 1e-6
    assert 0 <= top < bottom <= height + 1e-6
    assert 0.74 <= (right - left) / (bottom - top) <= 1.35
    area = (right - left) * (bottom - top)
    assert area >= 0.079 * width * height or max(width, height) > 1.3 * min(width, height)
