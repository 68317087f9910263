"""Decoding in a separate process with a deadline and a limit on memory, for images that may be hostile."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captune.core.errors import CaptuneError
from captune.data.decoding import MOST_PIXELS, UnreadableImageError, decode, measure
from captune.data.views import Preprocessing, preprocessing_of, weak_view

MOST_MEMORY = 1_000_000_000
"""Bytes that decoding one image may take, enough for 100 million pixels."""
SECONDS_TO_START = 30.0
READY = b"ready"
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
        self._pipes: tuple[Connection, Connection] | None = None

    def view(
        self, content: bytes, preprocessing: Preprocessing, seconds: float, smallest: int | None = None
    ) -> NDArray[np.uint8]:
        """Return the model's view of an image `(height, width, 3)`; with `smallest`, it is reduced while decoding.

        Raises:
            CostlyImageError: The image has too many pixels or takes too long.
            UnreadableImageError: The image cannot be decoded, for example within the memory.
        """
        return self._ask(content, {"smallest": smallest, "preprocessing": asdict(preprocessing)}, seconds)

    def image(self, content: bytes, seconds: float, smallest: int | None = None) -> Image.Image:
        """Return the decoded RGB image; see `view`."""
        return Image.fromarray(self._ask(content, {"smallest": smallest}, seconds))

    def close(self) -> None:
        """End the process."""
        process, self._process, pipes, self._pipes = self._process, None, self._pipes, None
        if process is not None:
            process.kill()
            process.wait()
        for pipe in pipes or ():
            pipe.close()

    def __enter__(self) -> GuardedDecoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, where: TracebackType | None) -> None:
        self.close()

    def _ask(self, content: bytes, wish: dict[str, Any], seconds: float) -> NDArray[np.uint8]:
        is_late = False
        try:
            sender, receiver = self._pipes or self._start()
            sender.send_bytes(json.dumps(wish | {"max_pixels": self.max_pixels}).encode())
            sender.send_bytes(content)
            is_late = not receiver.poll(max(0.0, seconds))
            if not is_late:
                answer = json.loads(receiver.recv_bytes())
                if "error" in answer:
                    raise (CostlyImageError if answer["is_costly"] else UnreadableImageError)(answer["error"])
                return np.frombuffer(receiver.recv_bytes(), dtype=np.uint8).reshape(answer["shape"])
        except (OSError, EOFError):  # the process ended
            pass
        self.close()
        if is_late:
            raise CostlyImageError(f"decoding takes more than {seconds:.3g} seconds")
        raise UnreadableImageError("its decoder crashed")

    def _start(self) -> tuple[Connection, Connection]:
        """Start the process and wait until it is ready, so that its start takes no time from an image."""
        program = _PROGRAM.format(path=[entry for entry in sys.path if entry], memory=self.max_memory)
        kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", program],  # isolated: no modules from the working directory
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pipes = (
            Connection(os.dup(self._process.stdin.fileno()), readable=False),
            Connection(os.dup(self._process.stdout.fileno()), writable=False),
        )
        self._process.stdin.close()
        self._process.stdout.close()
        self._pipes = pipes
        with suppress(OSError, EOFError):
            if pipes[1].poll(SECONDS_TO_START) and pipes[1].recv_bytes() == READY:
                return pipes
        self.close()
        raise CaptuneError("The process that decodes images did not start. Is there enough memory?")


def work(max_memory: int) -> None:
    """Decode images from standard input until it ends."""
    receiver, sender = Connection(0, writable=False), Connection(1, readable=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _address_space() + max_memory
    with suppress(ValueError, OSError):  # macOS refuses it
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sender.send_bytes(READY)
    with suppress(EOFError):
        while True:
            wish, content = json.loads(receiver.recv_bytes()), receiver.recv_bytes()
            try:
                pixels = np.ascontiguousarray(_decode(content, wish))
            except (UnreadableImageError, MemoryError) as error:
                message = "not enough memory to decode it" if isinstance(error, MemoryError) else str(error)
                is_costly = isinstance(error, CostlyImageError)
                sender.send_bytes(json.dumps({"error": message, "is_costly": is_costly}).encode())
            else:
                sender.send_bytes(json.dumps({"shape": pixels.shape}).encode())
                sender.send_bytes(pixels.reshape(-1).data)


def _decode(content: bytes, wish: dict[str, Any]) -> NDArray[np.uint8]:
    width, height = measure(content)
    if width * height > wish["max_pixels"]:
        raise CostlyImageError(f"{width} x {height} pixels, the limit is {wish['max_pixels']:,}")
    image = decode(content, wish["smallest"])
    if "preprocessing" not in wish:
        return np.asarray(image)
    return weak_view(image, preprocessing_of(wish["preprocessing"]))


def _address_space() -> int:
    """Return the bytes that the process has mapped already, mostly libraries."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 500_000_000
