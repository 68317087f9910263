"""Embeddings on disk, keyed by image content, weights and preprocessing; whole files or none."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from captune.core.arrays import Floats
from captune.core.errors import CaptuneError
from captune.core.files import cache_folder, drop_leftovers, write_whole
from captune.core.scratch import is_large
from captune.data.keys import Keys, KeySet

ENCODING = "1"
"""Raised when the same weights and preprocessing would give other embeddings than before."""
SECONDS_BETWEEN_PARTS = 10.0
ROWS_PER_PART = 8192
MOST_MAPPED = 16
"""Parts of a large shelf that are mapped at once: a process may not hold thousands of open files."""
default_folder = cache_folder


@dataclass(frozen=True)
class EmbeddingCache:
    """A folder of shelves, one for each model and preprocessing; any number of processes may share it."""

    folder: Path = field(default_factory=default_folder)

    def open(self, weights: str, preprocessing: str, width: int) -> Shelf:
        """Open the shelf of one model's embeddings and read what is on it; what kills left in the cache goes."""
        for place in ("embeddings/*/", "descriptions/*/", "shards/"):
            for folder in self.folder.glob(place):
                drop_leftovers(folder)
        key = hashlib.blake2b(f"{ENCODING}\n{weights}\n{preprocessing}".encode(), digest_size=12).hexdigest()
        return Shelf(self.folder / "embeddings" / key, width)


class Shelf:
    """The embeddings of one model: immutable part files, each named by the digest of its content.

    A part is written aside and renamed when it is complete, so a kill leaves whole parts only. A part whose
    content does not fit its name is dropped and its images are encoded again.
    """

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        self._parts: list[tuple[Path, int, int]] = []  # where the vectors are: file, first byte, number of rows
        self._open: dict[int, Floats] = {}
        keys, n_held = [np.empty((0, 16), dtype=np.uint8)], 0
        for path in sorted(folder.glob("*.safetensors")):
            part = _read_part(path, width)
            if part is None:
                continue
            keys.append(part.keys)
            n_held += len(part.keys)
            if not is_large(n_held, width):
                self._open[len(self._parts)] = part.vectors
            self._parts.append((path, part.vectors_at, len(part.keys)))
        self._first_rows = np.cumsum([0, *(n_rows for _, _, n_rows in self._parts)])
        self._n_kept = len(self._open)
        self.known = KeySet(np.concatenate(keys))
        self._new: list[tuple[Keys, Floats]] = []
        self._last_write = time.monotonic()

    def find(self, keys: Keys) -> Floats:
        """Return the embeddings of contents that the shelf holds, `(images, width)`."""
        rows = self.known.find(keys)
        found = np.empty((len(keys), self.width), dtype=np.float32)
        part_of_row = np.searchsorted(self._first_rows, rows, side="right") - 1
        for part in np.unique(part_of_row).tolist():
            is_here = part_of_row == part
            found[is_here] = self._vectors(part)[rows[is_here] - self._first_rows[part]]
        return found

    def _vectors(self, part: int) -> Floats:
        """Return a part's vectors: in memory where the shelf is small, else mapped, a few parts at a time."""
        if part not in self._open:
            if len(self._open) >= self._n_kept + MOST_MAPPED:
                del self._open[next(number for number in self._open if number >= self._n_kept)]
            path, first_byte, n_rows = self._parts[part]
            try:
                mapped = np.memmap(path, np.float32, "r", first_byte, (n_rows, self.width))
            except (OSError, ValueError) as error:
                raise CaptuneError(
                    f"The embedding cache lost {str(path)!r} while it was in use. Start again: what is missing is "
                    "embedded anew."
                ) from error
            self._open[part] = np.asarray(mapped)
        return self._open[part]

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


class _Part(NamedTuple):
    """What a part file holds, and at which byte its vectors begin."""

    keys: Keys
    vectors: Floats
    vectors_at: int


def _read_part(path: Path, width: int) -> _Part | None:
    try:
        content = path.read_bytes()
    except OSError:  # another process dropped it, or the disk hiccups: its images are encoded again
        return None
    try:
        if _digest(content) != path.stem:
            raise ValueError("the content does not fit the name")
        tensors = load_tensors(content)
        keys, vectors = tensors["keys"], tensors["vectors"]
        header_size = int.from_bytes(content[:8], "little")
        vectors_at = 8 + header_size + json.loads(content[8 : 8 + header_size])["vectors"]["data_offsets"][0]
        if keys.shape != (len(vectors), 16) or vectors.shape[1:] != (width,) or vectors.dtype != np.float32:
            raise ValueError("unexpected shapes")
    except Exception:  # whatever is wrong with a part, encoding its images again repairs it
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    return _Part(keys, vectors, vectors_at)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
