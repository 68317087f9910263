"""Reading and decoding one image, in a process of its own if it is costly: the only file that opens images."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError, features
from pydantic import TypeAdapter

from captune.core.arrays import Keys, content_key
from captune.core.errors import CaptuneError, InputError
from captune.data.shards import Span, locate
from captune.data.views import Preprocessing, weak_view

try:
    import resource
except ImportError:  # without POSIX limits, only the deadline and the limit on pixels hold
    resource = None  # type: ignore[assignment]

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
MOST_MEMORY = 1_000_000_000
"""Bytes that decoding one image may take, enough for 100 million pixels."""
SECONDS_TO_START = 30.0
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "LANG")
_PROGRAM = "import sys; sys.path[:] = {path}; from captune.data.decoding import work; work({memory})"


class UnreadableImageError(InputError):
    """An image that cannot be read or decoded; runs skip it and continue."""


class CostlyImageError(UnreadableImageError):
    """An image with more pixels than allowed, or one that takes too long."""


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
        if is_cheap(self.content):
            return decode(self.content, smallest)
        with GuardedDecoder() as decoder:
            return Image.fromarray(decoder.view(self.content, None, SECONDS_PER_IMAGE, smallest))


def read_bytes(path: Path, span: Span | None = None) -> bytes:
    """Return the content of an image file, or raise an UnreadableImageError with the reason.

    The path may point into a tar shard, `shard.tar/member`; `span` gives the location if it is known already.
    """
    try:
        span = span or locate(path) or Span(path, 0, path.stat().st_size)
        if not span.shard.is_file():
            raise UnreadableImageError("not a regular file")  # reading a pipe could block forever
        if not span.size:
            raise UnreadableImageError("the file is empty")
        if span.size > MOST_BYTES:
            raise UnreadableImageError(f"the file has {span.size:,} bytes, the limit is {MOST_BYTES:,}")
        with span.shard.open("rb") as file:
            file.seek(span.offset)
            content = file.read(span.size)
        if len(content) < span.size:
            raise UnreadableImageError("it was truncated since it was found")
        return content
    except UnreadableImageError:
        raise
    except (OSError, ValueError, InputError) as error:  # a name with a NUL character is a ValueError
        reason = str(error) if isinstance(error, InputError) else getattr(error, "strerror", None) or "cannot be read"
        raise UnreadableImageError(reason[:1].lower() + reason[1:]) from error


def decode(content: bytes, smallest: int | None = None, most: int = MOST_PIXELS) -> Image.Image:
    """Decode a file's content to an upright 8-bit RGB image, or raise an UnreadableImageError with the reason.

    With `smallest`, large images and JPEG files are reduced on the way, with sides of at least that many pixels, which
    takes much less time and memory. An image of more than `most` pixels is a CostlyImageError.
    """
    with _pillow_errors():
        image = _open(content, most)
        layout = str(getattr(image, "tile", ""))  # how the file stores its pixels
        if smallest is not None:
            image.draft("RGB", (smallest, smallest))
            image = _reduce(image, smallest)
        return _to_rgb(_upright(image), layout)


def is_cheap(content: bytes) -> bool:
    """Return whether a file is decoded in a second or two, from its header and how often each pixel is computed."""
    passes = EFFORT_OF_VIDEO if content[4:8] == b"ftyp" else max(1, _n_scans(content))
    if passes * MOST_PIXELS <= MOST_EFFORT:
        return True
    try:
        with _pillow_errors():
            return math.prod(_open(content).size) * passes <= MOST_EFFORT
    except UnreadableImageError:
        return True  # found again when it is decoded


def _n_scans(content: bytes) -> int:
    """Return how many scans a JPEG file has, 0 for other files."""
    return content.count(b"\xff\xda") if content.startswith(b"\xff\xd8") else 0


def _open(content: bytes, most: int = MOST_PIXELS) -> Image.Image:
    """Read the header of an image, and check what it would cost."""
    image = Image.open(BytesIO(content), formats=_formats(content))
    if math.prod(image.size) > most:
        raise CostlyImageError(f"{image.width} x {image.height} pixels, the limit is {most:,}")
    if (n_scans := _n_scans(content)) > MOST_SCANS:
        raise UnreadableImageError(f"a JPEG file with {n_scans:,} scans, the limit is {MOST_SCANS}")
    return image


def _formats(content: bytes) -> tuple[str, ...]:
    """Return what Pillow may open a file as; it reads HEIC with an optional package, and AVIF since version 11.3."""
    if content[4:8] != b"ftyp":
        return FORMATS
    if content[8:12] not in HEIF_BRANDS:
        if features.check("avif"):
            return ("AVIF",)
        raise UnreadableImageError("AVIF images need a newer Pillow: pip install -U pillow")
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
    if image.mode.startswith("I") or image.mode == "F":  # a strip at a time; leftover pixels are dropped
        width, height = (side // factor * factor for side in image.size)
        strips = (np.asarray(image.crop((0, top, width, top + factor))) for top in range(0, height, factor))
        means = [
            strip.reshape(factor, -1, factor).mean((0, 2), dtype=np.float64).astype(strip.dtype) for strip in strips
        ]
        reduced = Image.fromarray(np.stack(means))
    elif _has_alpha(image):
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        reduced = rgba.convert("RGBa").reduce(factor).convert("RGBA")  # so that transparent pixels lend no color
    else:
        reduced = (image if image.mode in ("L", "RGB") else image.convert("RGB")).reduce(factor)
    reduced.info = {}
    with suppress(Exception):  # damaged EXIF data; the orientation may also be in XMP
        reduced.getexif()[ExifTags.Base.Orientation] = image.getexif()[ExifTags.Base.Orientation]
    return reduced


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
        found = f"{type(source).__name__} of shape {getattr(source, 'shape', None)}"
        raise InputError(f"Expected a path, a Pillow image or an array (height, width[, 1, 3 or 4]), got {found}.")
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


class GuardedDecoder:
    """Decodes one image at a time in a process of its own, which ends if an image takes too long.

    The process starts with the first image, and again after it had to be ended. It needs no HOME, inherits no
    secrets and may be used inside worker processes. Use one decoder per thread.
    """

    def __init__(self, max_memory: int = MOST_MEMORY, max_pixels: int = MOST_PIXELS) -> None:
        self.max_memory, self.max_pixels = max_memory, max_pixels
        self._process: subprocess.Popen[bytes] | None = None

    def view(
        self, content: bytes, preprocessing: Preprocessing | None, seconds: float, smallest: int | None = None
    ) -> NDArray[np.uint8]:
        """Return the model's view of an image `(height, width, 3)`, or its pixels; see `decode`.

        A CostlyImageError means that it has too many pixels or takes too long.
        """
        given, answers = _pipes(self._process or self._start())
        wish = {"size": len(content), "max_pixels": self.max_pixels, "smallest": smallest}
        is_late = False
        with suppress(OSError):  # the process ended while it was reading
            _send(given, {**wish, "preprocessing": preprocessing and asdict(preprocessing)}, content)
            is_late = not _arrives(answers, seconds)
            answer = None if is_late else _receive(answers)
            if answer is not None and "error" in answer:
                raise (CostlyImageError if answer["costly"] else UnreadableImageError)(answer["error"])
            if answer is not None and len(pixels := answers.read(answer["size"])) == answer["size"]:
                return np.frombuffer(pixels, dtype=np.uint8).reshape(answer["shape"])
        self.close()
        if is_late:
            raise CostlyImageError(f"decoding takes more than {seconds:.3g} seconds")
        raise UnreadableImageError("its decoder crashed")

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in _pipes(process):
                with suppress(OSError):  # unsent bytes of an image that took too long
                    pipe.close()

    def __enter__(self) -> GuardedDecoder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process and wait until it is ready, so that its start takes no time from an image."""
        program = _PROGRAM.format(path=[entry for entry in sys.path if entry], memory=self.max_memory)
        kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-c", program],  # isolated: no modules from the working directory
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        answers = _pipes(process)[1]
        if not _arrives(answers, SECONDS_TO_START) or _receive(answers) is None:
            self.close()
            raise CaptuneError("The process that decodes images did not start. Is there enough memory?")
        return process


def work(max_memory: int) -> None:
    """Decode images from standard input until it ends."""
    given, answers = sys.stdin.buffer, sys.stdout.buffer
    as_preprocessing = TypeAdapter(Preprocessing).validate_python
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        mapped = 500_000_000  # mostly libraries
        with suppress(OSError):
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            mapped = pages * os.sysconf("SC_PAGE_SIZE")
        limit = mapped + max_memory
        with suppress(ValueError, OSError):  # macOS refuses it
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _send(answers, {"ready": True})
    while (wish := _receive(given)) is not None:
        try:
            content = given.read(wish["size"])
            image, model = decode(content, wish["smallest"], wish["max_pixels"]), wish["preprocessing"]
            view = image if model is None else weak_view(image, as_preprocessing(model))
            pixels = np.ascontiguousarray(view)
        except UnreadableImageError as error:
            _send(answers, {"error": str(error), "costly": isinstance(error, CostlyImageError)})
        except MemoryError:
            _send(answers, {"error": "not enough memory to decode it", "costly": False})
        else:
            _send(answers, {"shape": pixels.shape, "size": pixels.size}, pixels.data)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """Return where the process reads and where it writes."""
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _arrives(pipe: IO[bytes], seconds: float) -> bool:
    """Return whether something arrives in time; Windows cannot wait for a pipe, there only the other limits hold."""
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(1000 * max(0.0, seconds)))


def _send(pipe: IO[bytes], head: dict[str, Any], content: bytes | memoryview = b"") -> None:
    pipe.write(json.dumps(head).encode("ascii") + b"\n")
    pipe.write(content)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> dict[str, Any] | None:
    line = pipe.readline()
    return json.loads(line) if line.endswith(b"\n") else None
