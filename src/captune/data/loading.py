"""The one file that opens images: decoding that never stops a run, and batches from worker processes."""

from __future__ import annotations

import hashlib
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from captune.core.errors import CaptuneError, InputError
from captune.data.images import ImageCollection
from captune.data.keys import KEY_BYTES
from captune.data.paths import Span
from captune.data.shards import locate

MOST_PIXELS = 100_000_000
MOST_BYTES = 512 * 1024 * 1024
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")

View = Callable[[Image.Image, int], NDArray[np.uint8]]
"""Makes the model's input `(height, width, 3)` from an RGB image and its position."""


class UnreadableImageError(InputError):
    """An image file that cannot be used; the run sets it aside and goes on."""


@dataclass(frozen=True)
class LoadedBatch:
    """Some images of a collection, decoded; `positions` holds only those that could be read.

    Attributes:
        positions: Positions of the readable images in the collection, `(images,)`.
        keys: Content digests of the readable images, `(images, 16)`.
        is_decoded: Which of them were decoded and not skipped, `(images,)`.
        pixels: Views of the decoded images, `(decoded, height, width, 3)`.
        problems: Why the others could not be read, by position.
    """

    positions: NDArray[np.int64]
    keys: NDArray[np.uint8]
    is_decoded: NDArray[np.bool_]
    pixels: NDArray[np.uint8]
    problems: dict[int, str]


def read_bytes(path: Path, span: Span | None = None) -> bytes:
    """Return an image file's content, or say in one sentence why it cannot be read.

    The path may lead into a tar shard, `shard.tar/member`; `span` says where, and spares looking for the name.
    """
    try:
        if span is None:
            try:
                facts = path.stat()
            except NotADirectoryError:
                return _read_member(path)
        else:
            facts = span.shard.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise UnreadableImageError("not a regular file")  # reading a pipe could wait for ever
        size = facts.st_size if span is None else span.size
        if size == 0:
            raise UnreadableImageError("the file is empty")
        if size > MOST_BYTES:
            raise UnreadableImageError(f"the file has {size:,} bytes, at most {MOST_BYTES:,} are read")
        return path.read_bytes() if span is None else _read_span(span)
    except (OSError, ValueError) as error:  # a name with a NUL character is a ValueError
        raise UnreadableImageError((getattr(error, "strerror", None) or "cannot be read").lower()) from error


def _read_span(span: Span) -> bytes:
    with span.shard.open("rb") as file:
        file.seek(span.offset)
        content = file.read(span.size)
    if len(content) < span.size:
        raise UnreadableImageError("its shard is shorter than before")
    return content


def _read_member(path: Path) -> bytes:
    try:
        span = locate(path)
    except InputError as error:
        raise UnreadableImageError(str(error)) from None
    if span is None:
        raise UnreadableImageError("not a directory")
    return read_bytes(path, span)


def decode(content: bytes, smallest: int | None = None) -> Image.Image:
    """Decode a file's content to an upright 8-bit RGB image, or say in one sentence why that fails.

    With `smallest`, a JPEG may come out smaller, with sides of at least so many pixels, and is decoded much faster.
    """
    with _one_sentence():
        image = _open(content)
        if smallest is not None:
            image.draft("RGB", (smallest, smallest))
        return to_rgb(_upright(image))


def measure(content: bytes) -> tuple[int, int]:
    """Return the width and height that a file's content announces, or say in one sentence why it is not decoded."""
    with _one_sentence():
        return _open(content).size


def _open(content: bytes) -> Image.Image:
    image = Image.open(BytesIO(content), formats=FORMATS)
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise UnreadableImageError(f"{width} x {height} pixels, at most {MOST_PIXELS:,} are decoded")
    return image


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn whatever Pillow raises or warns of into one UnreadableImageError."""
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
        raise UnreadableImageError("decoding needs more memory than there is") from None
    except Exception as error:  # Pillow's decoders raise anything from struct.error to SyntaxError
        raise UnreadableImageError(f"damaged image ({str(error)[:80] or type(error).__name__})") from None


def _upright(image: Image.Image) -> Image.Image:
    """Turn an image as its EXIF data says; damaged EXIF data is no reason to do without the image."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged pixels raise here too, and again when they are read
        return image


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB: 16-bit and float are rescaled, transparency becomes white."""
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_bytes(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, rgba).convert("RGB")
    return image.convert("RGB")


def as_image(source: object) -> Image.Image:
    """Return an RGB image from a path, a Pillow image or an array (8-bit, 16-bit, or floats from 0 to 1)."""
    if isinstance(source, Image.Image):
        with _one_sentence():
            return to_rgb(_upright(source))
    if isinstance(source, (str, Path)):
        try:
            return decode(read_bytes(Path(source)))
        except UnreadableImageError as error:
            raise UnreadableImageError(f"The image {str(source)!r} cannot be used: {error}.") from None
    array = np.asarray(source) if hasattr(source, "__array__") else np.empty(0)
    if not is_image_array(array):
        raise InputError(
            "An image is a path, a Pillow image or an array of numbers (height, width) or (height, width, 1|3|4), "
            f"got {type(source).__name__} of shape {getattr(source, 'shape', None)}."
        )
    pixels = array if array.dtype == np.uint8 else _to_bytes(array)
    return to_rgb(Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels))


def is_image_array(array: NDArray[Any]) -> bool:
    """Return whether an array is one image: numbers, grey or with 1, 3 or 4 channels last."""
    is_shaped = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    return is_shaped and array.size > 0 and array.dtype.kind in "buif"


def content_key(content: bytes) -> NDArray[np.uint8]:
    """Return the digest that caches know an image by, `(16,)`."""
    return np.frombuffer(hashlib.blake2b(content, digest_size=KEY_BYTES).digest(), dtype=np.uint8)


class _Batches:
    """The map-style dataset of whole batches that worker processes read."""

    def __init__(
        self,
        images: ImageCollection,
        batches: Sequence[NDArray[np.int64]],
        view: View,
        skip: Callable[[NDArray[np.uint8]], bool] | None,
    ) -> None:
        self.images, self.batches, self.view, self.skip = images, batches, view, skip

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> LoadedBatch:
        positions, keys, decoded, pixels = [], [], [], []
        problems: dict[int, str] = {}
        for position in self.batches[number]:
            try:
                content = read_bytes(self.images.paths[position], self.images.paths.span(position))
                key = content_key(content)
                is_decoded = self.skip is None or not self.skip(key)
                if is_decoded:
                    pixels.append(self.view(decode(content), int(position)))
            except UnreadableImageError as error:
                problems[int(position)] = str(error)
                continue
            positions.append(position)
            keys.append(key)
            decoded.append(is_decoded)
        return LoadedBatch(
            np.asarray(positions, dtype=np.int64),
            np.stack(keys) if keys else np.empty((0, KEY_BYTES), dtype=np.uint8),
            np.asarray(decoded, dtype=np.bool_),
            np.stack(pixels) if pixels else np.empty((0, 0, 0, 3), dtype=np.uint8),
            problems,
        )


def load_batches(
    images: ImageCollection,
    batches: Sequence[NDArray[np.int64]],
    view: View,
    skip: Callable[[NDArray[np.uint8]], bool] | None = None,
    workers: int = 2,
) -> Iterator[LoadedBatch]:
    """Yield decoded batches in order, read ahead by worker processes; `skip` tells which contents to leave."""
    import torch
    from torch.utils.data import DataLoader

    dataset: Any = _Batches(images, batches, view, skip)
    n_workers = min(workers, len(batches))
    loader: Any = DataLoader(
        dataset,
        batch_size=None,
        num_workers=n_workers,
        collate_fn=_unchanged,
        prefetch_factor=4 if n_workers else None,
        generator=torch.Generator(),  # its own, so that loading draws nothing from the run's random numbers
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "worker" in str(error).lower():
            raise CaptuneError(
                f"An image worker process died ({error}). Often memory ran out: try --workers 0."
            ) from error
        raise


def _unchanged(batch: Any) -> Any:  # noqa: ANN401 (the loader's own signature)
    return batch


def _to_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    if low < 0 or high > 65535:
        scale, offset = 255.0 / max(high - low, 1e-12), low
    elif high > 255 or values.dtype.kind == "u":
        scale, offset = 255.0 / 65535.0, 0.0  # 16-bit images keep their absolute brightness, however dark
    else:
        scale, offset = (255.0 if high <= 1.0 else 1.0), 0.0
    return np.clip(np.round((finite - offset) * scale), 0, 255).astype(np.uint8)


def no_usable_image(images: ImageCollection, skipped: Mapping[int, str]) -> str:
    """Return the message for a collection of which nothing can be read."""
    if len(images) == 0:
        return f"No images in {str(images.root)!r}: expected JPEG, PNG, WebP, TIFF, BMP or GIF files."
    first = "".join(f"\n  - {images.name(position)}: {why}" for position, why in list(skipped.items())[:5])
    return f"None of the {len(images)} images in {str(images.root)!r} can be used:{first}"
