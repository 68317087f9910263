"""Decoding in a separate process with a deadline and a limit on memory, for images that may be hostile."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captune.core.errors import CaptuneError
from captune.data.decoding import MOST_PIXELS, UnreadableImageError, decode, measure
from captune.data.views import Preprocessing, preprocessing_of, weak_view

try:
    import resource
except ImportError:  # without POSIX limits, only the deadline and the limit on pixels hold
    resource = None  # type: ignore[assignment]

MOST_MEMORY = 1_000_000_000
"""Bytes that decoding one image may take, enough for 100 million pixels."""
SECONDS_TO_START = 30.0
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "LANG")
_PROGRAM = "import sys; sys.path[:] = {path}; from captune.data.guarded_decoding import work; work({memory})"


class CostlyImageError(UnreadableImageError):
    """An image with more pixels than allowed, or one that takes too long."""


class GuardedDecoder:
    """Decodes one image at a time in a process of its own, which ends if an image takes too long.

    The process starts with the first image, and again after it had to be ended. It needs no HOME, inherits no
    secrets and may be used inside worker processes. Use one decoder per thread.
    """

    def __init__(self, max_memory: int = MOST_MEMORY, max_pixels: int = MOST_PIXELS) -> None:
        self.max_memory, self.max_pixels = max_memory, max_pixels
        self._process: subprocess.Popen[bytes] | None = None

    def view(
        self, content: bytes, preprocessing: Preprocessing, seconds: float, smallest: int | None = None
    ) -> NDArray[np.uint8]:
        """Return the model's view of an image `(height, width, 3)`; with `smallest`, it is reduced while decoding.

        Raises:
            CostlyImageError: The image has too many pixels or takes too long.
            UnreadableImageError: The image cannot be decoded, for example within the memory.
        """
        return self._ask(content, seconds, {"smallest": smallest, "preprocessing": asdict(preprocessing)})

    def image(self, content: bytes, seconds: float, smallest: int | None = None) -> Image.Image:
        """Return the decoded RGB image; see `view`."""
        return Image.fromarray(self._ask(content, seconds, {"smallest": smallest}))

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # unsent bytes of an image that took too long
                    assert pipe is not None
                    pipe.close()

    def __enter__(self) -> GuardedDecoder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, content: bytes, seconds: float, wish: dict[str, Any]) -> NDArray[np.uint8]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        answer, is_late = None, False
        with suppress(OSError):  # the process ended while it was reading
            _send(process.stdin, wish | {"size": len(content), "max_pixels": self.max_pixels}, content)
            is_late = not _arrives(process.stdout, seconds)
            answer = None if is_late else _receive(process.stdout)
        if answer is not None and "error" in answer:
            raise (CostlyImageError if answer["costly"] else UnreadableImageError)(answer["error"])
        if answer is not None:
            size = math.prod(answer["shape"])
            pixels = process.stdout.read(size)
            if len(pixels) == size:
                return np.frombuffer(pixels, dtype=np.uint8).reshape(answer["shape"])
        self.close()
        if is_late:
            raise CostlyImageError(f"decoding takes more than {seconds:.3g} seconds")
        raise UnreadableImageError("its decoder crashed")

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
        assert process.stdout is not None
        if not _arrives(process.stdout, SECONDS_TO_START) or _receive(process.stdout) is None:
            self.close()
            raise CaptuneError("The process that decodes images did not start. Is there enough memory?")
        return process


def work(max_memory: int) -> None:
    """Decode images from standard input until it ends."""
    given, answers = sys.stdin.buffer, sys.stdout.buffer
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit = _address_space() + max_memory
        with suppress(ValueError, OSError):  # macOS refuses it
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _send(answers, {"ready": True})
    while (wish := _receive(given)) is not None:
        try:
            pixels = np.ascontiguousarray(_decode(given.read(wish["size"]), wish))
        except UnreadableImageError as error:
            _send(answers, {"error": str(error), "costly": isinstance(error, CostlyImageError)})
        except MemoryError:
            _send(answers, {"error": "not enough memory to decode it", "costly": False})
        else:
            _send(answers, {"shape": pixels.shape}, pixels.data)


def _decode(content: bytes, wish: dict[str, Any]) -> NDArray[np.uint8]:
    width, height = measure(content)
    if width * height > wish["max_pixels"]:
        raise CostlyImageError(f"{width} x {height} pixels, the limit is {wish['max_pixels']:,}")
    image = decode(content, wish["smallest"])
    return weak_view(image, preprocessing_of(wish["preprocessing"])) if "preprocessing" in wish else np.asarray(image)


def _address_space() -> int:
    """Return the bytes that the process has mapped already, mostly libraries."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 500_000_000


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
