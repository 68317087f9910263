"""Reading and decoding one image: the only file that opens images, and no image can stop a run."""

from __future__ import annotations

import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError, features

from captune.core.arrays import Keys, content_key
from captune.core.errors import InputError
from captune.data.shards import Span, locate

MOST_PIXELS = 100_000_000
MOST_BYTES = 512 * 1024 * 1024
MOST_SCANS = 500
"""Of one JPEG file; cameras and editors write about ten, and each costs as much time as the whole image."""
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
MOST_EFFORT = 200_000_000
"""Pixels that are decoded without a deadline: a second or two. A photo of 12 million pixels in ten scans is below."""
EFFORT_OF_VIDEO = 20
"""How much longer a pixel takes in AVIF and HEIC files, which are compressed like videos."""
SECONDS_PER_IMAGE = 30.0
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
RANGE = "captune range"
"""Key in the `info` of a decoded image: the range of values that was guessed when it was scaled to 8 bits."""
LARGE_PIXELS = 4_000_000
"""Larger images are reduced before they are converted, if the caller allows it."""

LARGEST = (1.0, 255.0, 1023.0, 4095.0, 16383.0, 65535.0)
"""Largest values of floats, and of 8, 10, 12, 14 and 16 bits."""
PIXELS_PER_OUTLIER = 500
"""One value in so many may lie outside the range: a hot pixel must not turn the rest black."""


class UnreadableImageError(InputError):
    """An image that cannot be read or decoded; runs skip it and continue."""


@dataclass(frozen=True)
class ImageData:
    """One image of a collection, not decoded yet: the content of a file, or an RGB image that is in memory already."""

    content: bytes | Image.Image

    @property
    def key(self) -> Keys:
        """Return the digest of the file's content or of the pixels, which caches use, `(16,)`."""
        if isinstance(self.content, bytes):
            return content_key(self.content)
        return content_key(f"pixels {self.content.size}\n".encode() + self.content.tobytes())

    def decode(self, smallest: int | None = None) -> Image.Image:
        """Return an upright 8-bit RGB image; with `smallest`, a file may be reduced, but no side below that.

        A file that may take very long is decoded in a process that can be ended.
        """
        if isinstance(self.content, Image.Image):
            return self.content
        if _passes(self.content) * MOST_PIXELS <= MOST_EFFORT or effort(self.content) <= MOST_EFFORT:
            return decode(self.content, smallest)
        from captune.data.guarded_decoding import GuardedDecoder  # which decodes with this module

        with GuardedDecoder() as decoder:
            return decoder.image(self.content, SECONDS_PER_IMAGE, smallest)


def read_bytes(path: Path, span: Span | None = None) -> bytes:
    """Return the content of an image file, or raise an UnreadableImageError with the reason.

    The path may point into a tar shard, `shard.tar/member`; `span` gives the location if it is known already.
    """
    try:
        span = span or locate(path)
        file = path if span is None else span.shard
        facts = file.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise UnreadableImageError("not a regular file")  # reading a pipe could block forever
        offset, size = (0, facts.st_size) if span is None else (span.offset, span.size)
        if size == 0:
            raise UnreadableImageError("the file is empty")
        if size > MOST_BYTES:
            raise UnreadableImageError(f"the file has {size:,} bytes, the limit is {MOST_BYTES:,}")
        with file.open("rb") as opened:
            opened.seek(offset)
            content = opened.read(size)
    except UnreadableImageError:
        raise
    except (OSError, ValueError, InputError) as error:  # a name with a NUL character is a ValueError
        reason = str(error) if isinstance(error, InputError) else getattr(error, "strerror", None) or "cannot be read"
        raise UnreadableImageError(reason[:1].lower() + reason[1:]) from error
    if len(content) < size:
        raise UnreadableImageError("it was truncated since it was found")
    return content


def decode(content: bytes, smallest: int | None = None) -> Image.Image:
    """Decode a file's content to an upright 8-bit RGB image, or raise an UnreadableImageError with the reason.

    With `smallest`, large images and JPEG files are reduced on the way, with sides of at least that many pixels, which
    takes much less time and memory.
    """
    with _pillow_errors():
        image = _open(content)
        layout = str(getattr(image, "tile", ""))  # how the file stores its pixels
        if smallest is not None:
            image.draft("RGB", (smallest, smallest))
            image = _reduce(image, smallest)
        return _to_rgb(_upright(image), layout)


def measure(content: bytes) -> tuple[int, int]:
    """Return the width and height in a file's header, or raise an UnreadableImageError with the reason."""
    with _pillow_errors():
        return _open(content).size


def effort(content: bytes) -> int:
    """Return how many times a pixel is computed to decode a file, roughly and from its header alone."""
    try:
        width, height = measure(content)
    except UnreadableImageError:
        return 0  # found again when it is decoded
    return width * height * _passes(content)


def _passes(content: bytes) -> int:
    """Return how many times each pixel of a file is computed."""
    if content.startswith(b"\xff\xd8"):
        return max(1, content.count(b"\xff\xda"))
    return EFFORT_OF_VIDEO if content[4:8] == b"ftyp" else 1


def _open(content: bytes) -> Image.Image:
    image = Image.open(BytesIO(content), formats=_formats(content))
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise UnreadableImageError(f"{width} x {height} pixels, the limit is {MOST_PIXELS:,}")
    n_scans = content.count(b"\xff\xda") if content.startswith(b"\xff\xd8") else 0
    if n_scans > MOST_SCANS:
        raise UnreadableImageError(f"a JPEG file with {n_scans:,} scans, the limit is {MOST_SCANS}")
    return image


def _formats(content: bytes) -> tuple[str, ...]:
    """Return what Pillow may open a file as; it reads HEIC with an optional package, and AVIF since version 11.3."""
    if content[4:8] != b"ftyp":
        return FORMATS
    if content[8:12] not in HEIF_BRANDS:
        if not features.check("avif"):
            raise UnreadableImageError("AVIF images need a newer Pillow: pip install -U pillow")
        return ("AVIF",)
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise UnreadableImageError("HEIC images need one more package: pip install 'captune[heic]'") from None
    register_heif_opener()
    return ("HEIF", "AVIF")


def _reduce(image: Image.Image, smallest: int) -> Image.Image:
    """Average blocks of pixels of a large image, before conversions that need several times its memory."""
    factor = min(image.size) // smallest
    if factor < 2 or image.width * image.height <= LARGE_PIXELS:
        return image
    image.load()
    if image.mode.startswith("I") or image.mode == "F":
        reduced = Image.fromarray(_block_means(image, factor))
    elif _has_alpha(image):
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        reduced = rgba.convert("RGBa").reduce(factor).convert("RGBA")  # so that transparent pixels lend no color
    else:
        reduced = (image if image.mode in ("L", "RGB") else image.convert("RGB")).reduce(factor)
    reduced.info = {}
    with suppress(Exception):  # damaged EXIF data; the orientation may also be in XMP
        reduced.getexif()[ExifTags.Base.Orientation] = image.getexif()[ExifTags.Base.Orientation]
    return reduced


def _block_means(image: Image.Image, factor: int) -> NDArray[Any]:
    """Return the means of square blocks, in the image's own type, `(height, width)`; leftover pixels are dropped."""
    width, height = (side // factor * factor for side in image.size)
    rows = []
    for top in range(0, height, factor):
        strip = np.asarray(image.crop((0, top, width, top + factor)))
        means = strip.reshape(factor, -1, factor).mean(axis=(0, 2), dtype=np.float64)
        rows.append(means.astype(strip.dtype))
    return np.stack(rows)


def _has_alpha(image: Image.Image) -> bool:
    """Return whether pixels of an image may be transparent."""
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


@contextmanager
def _pillow_errors() -> Iterator[None]:
    """Turn whatever Pillow raises into an UnreadableImageError, and silence its warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UnreadableImageError:
        raise
    except UnidentifiedImageError:
        raise UnreadableImageError("not an image of a known format") from None
    except Image.DecompressionBombError:
        raise UnreadableImageError(f"more than {MOST_PIXELS:,} pixels") from None
    except MemoryError:
        raise UnreadableImageError("not enough memory to decode it") from None
    except Exception as error:  # Pillow's decoders raise anything from struct.error to SyntaxError
        raise UnreadableImageError(f"damaged image ({str(error)[:80] or type(error).__name__})") from None


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF rotation, unless the EXIF data is damaged."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged pixels raise here too, and again when they are read
        return image


def _to_rgb(image: Image.Image, layout: str = "") -> Image.Image:
    """Convert any Pillow mode to RGB: 16-bit and float values are rescaled, transparency becomes white.

    `layout` tells how the file stores its pixels, which Pillow does not always read as they are.
    """
    if ";32N" in layout and np.asarray(image).min() < 0:
        raise UnreadableImageError("unsigned 32-bit values above 2,147,483,647, which Pillow cannot read")
    if image.mode.startswith("I") or image.mode == "F":
        return _from_scaled(*to_8_bits(np.asarray(image)))
    if ";16" in layout:
        return _from_scaled(*stretch_high_bytes(np.asarray(image)))
    if image.mode == "RGB":
        image.load()
        return image
    if _has_alpha(image):
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _from_scaled(values: NDArray[np.uint8], guessed: str) -> Image.Image:
    rgb = _to_rgb(Image.fromarray(values))
    rgb.info[RANGE] = guessed
    return rgb


def as_image(source: object) -> Image.Image:
    """Return an RGB image from a Pillow image or an array (8-bit, 16-bit, or floats from 0 to 1)."""
    if isinstance(source, Image.Image):
        with _pillow_errors():
            return _to_rgb(_upright(source))
    array = np.asarray(source) if hasattr(source, "__array__") else np.empty(0)
    if not is_image_array(array):
        raise InputError(
            "Expected an image as a path, a Pillow image or a numeric array of shape (height, width) or "
            f"(height, width, 1|3|4), got {type(source).__name__} of shape {getattr(source, 'shape', None)}."
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    with _pillow_errors():
        return _from_scaled(*((array, "") if array.dtype == np.uint8 else to_8_bits(array)))


def is_image_array(array: NDArray[Any]) -> bool:
    """Return whether an array is one image: numeric, gray or with 1, 3 or 4 channels last."""
    has_image_shape = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    return has_image_shape and array.size > 0 and array.dtype.kind in "buif"


def to_8_bits(values: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    """Return values scaled to 0 to 255, and which range was guessed; empty if nothing had to be guessed.

    The largest value is that of the smallest usual bit depth that holds the values, since a file of 16 bits often
    contains 12. Values below zero, or above 16 bits, have no usual range: there, the smallest becomes black and the
    largest white; so it is for floats that would all be black.
    """
    is_finite = np.isfinite(values)
    if not is_finite.any():
        raise ValueError("no value is a finite number")
    finite = np.where(is_finite, values.astype(np.float64), 0.0)
    n_outliers = finite.size // PIXELS_PER_OUTLIER
    ends = [n_outliers, finite.size - 1 - n_outliers]
    low, high = np.partition(finite, ends, axis=None)[ends].tolist()
    depths = LARGEST[1:] if values.dtype.kind == "u" else LARGEST
    white = next((largest for largest in depths if high <= largest), None)
    if low < 0 or white is None or (values.dtype.kind == "f" and 0 < high < 1 / 255):
        low = min(low, 0.0)
        white = high if high > low else low + 1.0
        is_guessed = True
    else:
        is_guessed = bool(finite.max() > white or finite.min() < 0 or white in LARGEST[2:5])
        is_guessed |= values.dtype == np.uint16 and white < LARGEST[-1]
        low = 0.0
    scaled = np.clip(np.round((finite - low) * (255.0 / (white - low))), 0, 255).astype(np.uint8)
    return scaled, f"{low:g} to {white:g}" if is_guessed else ""


def stretch_high_bytes(values: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], str]:
    """Return the high bytes of 16-bit channels, scaled by the bits that are used, and which range was guessed.

    Pillow drops the low bytes of color images: of 12 bits, four are left, which are enough but would be near-black.
    """
    if not values.any():
        raise ValueError("its 16-bit channels have no value above 255")
    rank = values.size - 1 - values.size // PIXELS_PER_OUTLIER
    largest = np.partition(values, rank, axis=None)[rank]
    white = next(depth for depth in LARGEST[2:] if largest <= depth // 256)
    stretched = np.clip(np.round(values * (255.0 / (white // 256))), 0, 255).astype(np.uint8)
    return stretched, f"0 to {white:g}" if white < LARGEST[-1] else ""
