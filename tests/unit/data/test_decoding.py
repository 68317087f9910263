"""Every format and mode becomes the right RGB pixels; what cannot be read says why in one sentence."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, features
from PIL.PngImagePlugin import PngInfo

from captune.core.errors import InputError
from captune.data import decoding
from captune.data.decoding import RANGE, UnreadableImageError, as_image, decode, is_cheap, read_bytes
from captune.data.images import find_images
from captune.data.loading import load_batches

RED, WHITE = (255, 0, 0), (255, 255, 255)
LOSSLESS = {"PNG": {}, "TIFF": {}, "BMP": {}, "GIF": {}, "WEBP": {"lossless": True}}


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(content: bytes) -> np.ndarray:
    image = decode(content)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def two_colors(mode: str, left: Any, right: Any) -> Image.Image:
    image = Image.new(mode, (16, 8), left)
    image.paste(right, (8, 0, 16, 8))
    return image


@pytest.mark.parametrize("kind", LOSSLESS)
def test_colors_survive_lossless_formats(kind: str) -> None:
    got = pixels(saved(two_colors("RGB", RED, (0, 0, 200)), kind, **LOSSLESS[kind]))
    assert got.shape == (8, 16, 3)
    assert got[0, 0].tolist() == [255, 0, 0]
    assert got[0, 15].tolist() == [0, 0, 200]


@pytest.mark.parametrize(("kind", "mode"), [("JPEG", "L"), ("PNG", "L"), ("TIFF", "L"), ("BMP", "L"), ("GIF", "L")])
def test_grey_becomes_three_equal_channels(kind: str, mode: str) -> None:
    got = pixels(saved(two_colors(mode, 40, 200), kind))
    assert np.abs(got[0, 0] - 40).max() <= 2
    assert np.abs(got[0, 15] - 200).max() <= 2


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_becomes_rgb(kind: str) -> None:
    got = pixels(saved(two_colors("CMYK", (0, 255, 255, 0), (0, 0, 0, 0)), kind))
    assert np.abs(got[0, 0] - RED).max() <= 6
    assert np.abs(got[0, 15] - WHITE).max() <= 6


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize(
    ("right", "white"), [(257 * 200, 65535), (16000, 16383), (3900, 4095), (900, 1023), (200, 255)]
)
def test_16_bit_gray_is_scaled_by_the_bits_that_it_uses(kind: str, right: int, white: int) -> None:
    values = np.full((32, 40), right // 4, dtype=np.uint16)
    values[:, 20:] = right
    got = decode(saved(Image.fromarray(values), kind))
    assert abs(got.getpixel((0, 0))[0] - right // 4 * 255 / white) <= 1
    assert abs(got.getpixel((39, 0))[0] - right * 255 / white) <= 1
    assert got.info[RANGE] == ("" if white == 65535 else f"0 to {white}")
    values[3, 3] = 65535  # a hot pixel changes nothing
    hot = pixels(saved(Image.fromarray(values), kind)).reshape(-1, 3)
    assert np.array_equal(np.delete(hot, 123, axis=0), np.delete(np.asarray(got).reshape(-1, 3), 123, axis=0))


def test_one_bright_pixel_does_not_turn_a_float_image_black() -> None:
    values = np.random.default_rng(0).random((30, 40), dtype=np.float32)
    expected = pixels(saved(Image.fromarray(values), "TIFF"))
    for outlier in (1.5, 900.0, 1e30, -3.0, np.inf):
        values[5, 5] = outlier
        got = decode(saved(Image.fromarray(values), "TIFF"))
        others = np.delete(np.asarray(got).reshape(-1, 3).astype(int), 205, axis=0)
        assert np.abs(others - np.delete(expected.reshape(-1, 3), 205, axis=0)).max() <= 1
        assert got.info[RANGE] == ("" if np.isinf(outlier) else "0 to 1")


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize(("white", "tolerance"), [(65535, 1), (16383, 5), (4095, 17), (1023, 64)])
def test_16_bit_color_is_scaled_by_the_bits_that_it_uses(channels: int, white: int, tolerance: int) -> None:
    shades = np.array([0.3, 0.6, 1.0, 1.0][:channels])
    values = np.broadcast_to(shades * white, (32, 40, channels)).astype(np.uint16)
    got = decode(png_16(values))
    assert np.abs(np.asarray(got)[9, 9] - shades[:3] * 255).max() <= tolerance
    assert got.info[RANGE] == ("" if white == 65535 else f"0 to {white}")
    with pytest.raises(UnreadableImageError, match="no value above 255"):
        decode(png_16(values // white))


def png_16(values: np.ndarray) -> bytes:
    """Return a PNG file with 16 bits per channel, which Pillow cannot write in color."""
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = [struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c)) for kind, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_values_that_would_turn_black_are_scaled_or_refused() -> None:
    values = np.random.default_rng(0).random((30, 40), dtype=np.float32)
    expected = pixels(saved(Image.fromarray(values), "TIFF"))
    faint = decode(saved(Image.fromarray(values * np.float32(1e-6)), "TIFF"))
    assert np.abs(np.asarray(faint).astype(int) - expected).max() <= 2
    assert faint.info[RANGE]
    for nothing in (np.nan, np.inf, -np.inf):
        with pytest.raises(UnreadableImageError, match="no value is a finite number"):
            decode(saved(Image.fromarray(np.full_like(values, nothing)), "TIFF"))
        with pytest.raises(UnreadableImageError, match="no value is a finite number"):
            as_image(np.full((9, 9, 3), nothing))
    signed = saved(Image.fromarray((values * 2000 - 1000).astype(np.int32)), "TIFF")
    assert pixels(signed).std() > 50
    unsigned = signed.replace(struct.pack("<HHIHxx", 339, 3, 1, 2), struct.pack("<HHIHxx", 339, 3, 1, 1))
    assert unsigned != signed
    with pytest.raises(UnreadableImageError, match="unsigned 32-bit values"):  # they would wrap around
        decode(unsigned)


def test_avif_is_read_and_heic_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    if features.check("avif"):
        got = pixels(saved(Image.new("RGB", (16, 8), RED), "AVIF"))
        assert np.abs(got[0, 0] - RED).max() <= 8
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UnreadableImageError, match=r"pip install 'captune\[heic\]'"):
        decode(b"\0\0\0\x18ftypheic" + bytes(40))


def test_heic_is_read_with_the_extra() -> None:
    heif = pytest.importorskip("pillow_heif", reason="pip install 'captune[heic]'")
    file = io.BytesIO()
    heif.from_pillow(Image.new("RGB", (64, 48), RED)).save(file, quality=90)
    assert np.abs(pixels(file.getvalue())[10, 10] - RED).max() <= 10


def test_float_tiff_is_rescaled() -> None:
    got = pixels(saved(Image.fromarray(np.array([[0.0, 0.5, 1.0, np.nan]], dtype=np.float32)), "TIFF"))
    assert got[0, :, 0].tolist() == [0, 128, 255, 0]
    got = pixels(saved(Image.fromarray(np.array([[-10.0, 0.0, 10.0]], dtype=np.float32)), "TIFF"))
    assert got[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_transparency_becomes_white(kind: str) -> None:
    got = pixels(saved(two_colors("RGBA", (255, 0, 0, 255), (0, 0, 0, 0)), kind, **LOSSLESS[kind]))
    assert got[0, 0].tolist() == [255, 0, 0]
    assert got[0, 15].tolist() == [255, 255, 255]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_palette_with_a_transparent_color(kind: str) -> None:
    image = Image.new("P", (16, 8), 0)
    image.putpalette([255, 0, 0, 0, 0, 0])
    image.paste(1, (8, 0, 16, 8))
    assert pixels(saved(image, kind))[0, 15].tolist() == [0, 0, 0]
    assert pixels(saved(image, kind, transparency=1))[0, 15].tolist() == [255, 255, 255]
    assert pixels(saved(image, kind, transparency=1))[0, 0].tolist() == [255, 0, 0]


def test_one_bit_and_grey_with_alpha() -> None:
    assert pixels(saved(two_colors("1", 0, 1), "PNG"))[0, [0, 15], 0].tolist() == [0, 255]
    assert pixels(saved(two_colors("LA", (90, 255), (90, 0)), "PNG"))[0, [0, 15], 0].tolist() == [90, 255]


@pytest.mark.parametrize(
    ("orientation", "corner"), [(1, (0, 0)), (2, (0, -1)), (3, (-1, -1)), (4, (-1, 0)), (6, (0, -1)), (8, (-1, 0))]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_exif_rotation_is_applied(kind: str, orientation: int, corner: tuple[int, int]) -> None:
    image = Image.new("RGB", (32, 16), WHITE)
    image.paste(RED, (0, 0, 8, 8))  # the top left corner, which the camera's turn moves elsewhere
    exif = Image.Exif()
    exif[274] = orientation
    got = pixels(saved(image, kind, exif=exif.tobytes() if kind != "TIFF" else exif))
    assert got.shape == ((32, 16, 3) if orientation in (6, 8) else (16, 32, 3))
    assert np.abs(got[corner] - RED).max() <= 40


XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    '<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "PNG with XMP", "WEBP with XMP"])
def test_large_images_are_as_upright_when_they_are_reduced(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captune.data.decoding.LARGE_PIXELS", 100)
    image, exif, info = Image.new("RGB", (64, 32), WHITE), Image.Exif(), PngInfo()
    exif[274] = 6
    info.add_itxt("XML:com.adobe.xmp", XMP)
    facts = {"PNG with XMP": {"pnginfo": info}, "WEBP with XMP": {"xmp": XMP.encode()}}.get(kind, {"exif": exif})
    content = saved(image, kind.split(maxsplit=1)[0], **facts)
    assert decode(content).size == (32, 64)
    width, height = decode(content, 8).size
    assert 2 * width == height


def test_damaged_exif_is_no_reason_to_do_without_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(image: Image.Image) -> Image.Image:
        raise SyntaxError("not a TIFF file")

    monkeypatch.setattr(decoding.ImageOps, "exif_transpose", fail)
    assert pixels(saved(two_colors("RGB", RED, WHITE), "PNG"))[0, 0].tolist() == [255, 0, 0]


def huge_png(width: int, height: int) -> bytes:
    """Return a small PNG file that announces a huge image."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


PHOTO = saved(Image.effect_noise((64, 64), 60).convert("RGB"), "JPEG")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (PHOTO[: len(PHOTO) // 2], "damaged image .*truncated"),
        (PHOTO[:20], "damaged image|not an image"),
        (b"just some text", "known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (huge_png(20_000, 20_000), "pixels"),
        (huge_png(11_000, 10_000), "11000 x 10000 .*100,000,000"),
        (saved(Image.effect_noise((32, 32), 60), "PNG")[:200], "damaged"),
    ],
    ids=["half", "header only", "text", "postscript", "bomb", "too large", "cut png"],
)
def test_what_cannot_be_decoded_says_why(content: bytes, words: str) -> None:
    with pytest.raises(UnreadableImageError, match=words):
        decode(content)


@given(st.binary(max_size=400), st.integers(0, 400))
def test_damaged_bytes_give_an_image_or_one_sentence(noise: bytes, place: int) -> None:
    damaged = PHOTO[:place] + noise + PHOTO[place + len(noise) :]
    with contextlib.suppress(UnreadableImageError):
        assert decode(damaged).mode == "RGB"


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "big.jpg").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe.jpg")
    monkeypatch.setattr(decoding, "MOST_BYTES", 4)
    expected = {"empty": "empty", "folder": "not a regular file", "pipe": "not a regular file", "gone": "no such file"}
    for name, words in {**expected, "big": "5 bytes", "nul\0": "cannot be read"}.items():
        with pytest.raises(UnreadableImageError, match=words):
            read_bytes(tmp_path / f"{name}.jpg")


def test_a_file_without_rights_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jpg").write_bytes(PHOTO)

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything, so rights alone prove nothing
    with pytest.raises(UnreadableImageError, match="permission denied"):
        read_bytes(tmp_path / "a.jpg")


def test_images_in_memory() -> None:
    array = np.zeros((4, 6, 3), dtype=np.uint8)
    array[..., 0] = 255
    sources = [Image.new("RGBA", (4, 4), (255, 0, 0, 255)), array]
    sources += [array.astype(np.float32) / 255, array.astype(np.uint16) * 257, array.astype(np.int64)]
    for source in sources:
        assert as_image(source).getpixel((0, 0)) == RED
    assert as_image(array).size == (6, 4)
    assert as_image(np.full((4, 4), 7, dtype=np.uint8)).getpixel((0, 0)) == (7, 7, 7)
    assert as_image(np.full((4, 4, 1), True)).getpixel((0, 0)) == WHITE


@pytest.mark.parametrize(
    "source",
    [None, 5, [1, 2], np.zeros((2, 2, 2)), np.zeros((0, 4)), np.zeros(3), np.array([["a"]]), np.zeros((1, 1, 1, 3))],
)
def test_what_is_no_image_is_refused(source: object) -> None:
    with pytest.raises(InputError, match=type(source).__name__):
        as_image(source)


def test_an_open_image_that_is_damaged_names_the_problem(tmp_path: Path) -> None:
    (tmp_path / "cut.jpg").write_bytes(PHOTO[:-200])
    with pytest.raises(UnreadableImageError, match="damaged"):
        as_image(Image.open(tmp_path / "cut.jpg"))


def test_an_image_that_takes_too_long_is_skipped_and_the_others_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1200, 1200, 3), dtype=np.uint8)
    slow = saved(Image.fromarray(noise), "JPEG", progressive=True, quality=95)
    start = slow.rindex(b"\xff\xda")
    (tmp_path / "slow.jpg").write_bytes(slow[:-2] + slow[start:-2] * 400 + slow[-2:])  # the last scan again and again
    (tmp_path / "usual.jpg").write_bytes(slow)
    assert is_cheap(slow)
    assert not is_cheap((tmp_path / "slow.jpg").read_bytes())
    monkeypatch.setattr(decoding, "SECONDS_PER_IMAGE", 0.05)
    images = find_images(tmp_path)
    (batch,) = load_batches(images, [np.arange(2)], lambda image, position, keys: np.asarray(image), workers=0)
    assert batch.positions.tolist() == [1]
    assert batch.problems == {0: "decoding takes more than 0.05 seconds"}
