"""Embeddings on disk, keyed by image content, weights and preprocessing; whole files or none."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from captune.arrays import Floats
from captune.data.keys import Keys, KeySet
from captune.files import cache_folder, write_whole

ENCODING = "1"
"""Raised when the same weights and preprocessing would give other embeddings than before."""
SECONDS_BETWEEN_PARTS = 10.0
ROWS_PER_PART = 8192
default_folder = cache_folder


@dataclass(frozen=True)
class EmbeddingCache:
    """A folder of shelves, one for each model and preprocessing; any number of processes may share it."""

    folder: Path = field(default_factory=default_folder)

    def open(self, weights: str, preprocessing: str, width: int) -> Shelf:
        """Open the shelf of one model's embeddings and read what is on it."""
        key = hashlib.blake2b(f"{ENCODING}\n{weights}\n{preprocessing}".encode(), digest_size=12).hexdigest()
        return Shelf(self.folder / "embeddings" / key, width)


class Shelf:
    """The embeddings of one model: immutable part files, each named by the digest of its content.

    A part is written aside and renamed when it is complete, so a kill leaves whole parts only. A part whose
    content does not fit its name is dropped and its images are encoded again.
    """

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        parts = [part for path in sorted(folder.glob("*.safetensors")) if (part := _read_part(path, width))]
        empty = (np.empty((0, 16), dtype=np.uint8), np.empty((0, width), dtype=np.float32))
        keys, vectors = zip(*(parts or [empty]), strict=True)
        self.known = KeySet(np.concatenate(keys))
        self._vectors = np.concatenate(vectors)
        self._new: list[tuple[Keys, Floats]] = []
        self._last_write = time.monotonic()

    def find(self, keys: Keys) -> Floats:
        """Return the embeddings of contents that the shelf holds, `(images, width)`."""
        return self._vectors[self.known.find(keys)]

    def add(self, keys: Keys, vectors: Floats) -> None:
        """Put embeddings on the shelf; they are on disk at the latest when the shelf is closed."""
        if len(keys):
            self._new.append((keys, vectors))
        n_rows = sum(len(rows) for rows, _ in self._new)
        if n_rows >= ROWS_PER_PART or time.monotonic() - self._last_write > SECONDS_BETWEEN_PARTS:
            self.flush()

    def flush(self) -> None:
        """Write what was added since the last time as one more part."""
        self._last_write = time.monotonic()
        if not self._new:
            return
        tensors = {
            "keys": np.concatenate([keys for keys, _ in self._new]),
            "vectors": np.concatenate([vectors for _, vectors in self._new]),
        }
        content = save_tensors(tensors)
        write_whole(self.folder / f"{_digest(content)}.safetensors", content)
        self._new.clear()

    def __enter__(self) -> Shelf:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()


def _read_part(path: Path, width: int) -> tuple[Keys, Floats] | None:
    try:
        content = path.read_bytes()
    except OSError:  # another process dropped it, or the disk hiccups: its images are encoded again
        return None
    try:
        if _digest(content) != path.stem:
            raise ValueError("the content does not fit the name")
        tensors = load_tensors(content)
        keys, vectors = tensors["keys"], tensors["vectors"]
        if keys.shape != (len(vectors), 16) or vectors.shape[1:] != (width,):
            raise ValueError("unexpected shapes")
    except Exception:  # whatever is wrong with a part, encoding its images again repairs it
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    return keys, vectors


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
