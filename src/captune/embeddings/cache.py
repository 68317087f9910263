"""Embeddings on disk, keyed by image content, weights and preprocessing; contents of files, keyed by their stamps.

As long as the stamp of a file is the same, its content is, so it need not be read again. A stamp is a digest of the
path and of what the file system says about the file: device, inode, size, and the times of its last change. Nobody can
set the time of the last status change (ctime), so a file that was written in place, or replaced by one of the same size
and modification time, has another stamp. A file that changed in the last seconds has no stamp, because clocks of file
systems are coarse: it could change again without a trace.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from typing_extensions import Self

from captune.core.arrays import KEY_BYTES, Ints, Keys, content_key, empty_rows, is_embedding
from captune.core.files import cache_folder, digest, drop_leftovers, write_whole
from captune.data.images import ImageCollection

ENCODING = "1"
"""Part of the cache key: increase it when the same weights and preprocessing give different embeddings."""
SECONDS_BETWEEN_PARTS = 10.0
ROWS_PER_PART = 8192
SECONDS_UNTIL_SETTLED = 2.0
default_folder = cache_folder


@dataclass(frozen=True)
class EmbeddingCache:
    """A folder with one shard per model and preprocessing, which any number of processes may share."""

    folder: Path = field(default_factory=default_folder)

    @classmethod
    def of(cls, folder: str) -> EmbeddingCache:
        """Return the cache in a folder; the user's if it is empty."""
        return cls(Path(folder)) if folder else cls()

    def open(self, weights: str, preprocessing: str, width: int) -> CacheShard:
        """Open the shard of one model and remove temporary files of killed processes from the cache."""
        for pattern in ("embeddings/*/", "descriptions/*/", "files/*/", "backbones/"):
            for folder in self.folder.glob(pattern):
                drop_leftovers(folder)
        key = digest(f"{ENCODING}\n{weights}\n{preprocessing}".encode(), 12)
        return CacheShard(self.folder / "embeddings" / key, width)

    def open_texts(self, model: str, texts: Sequence[str], width: int) -> CacheShard:
        """Open the embeddings of a list of sentences by a model with this stamp, which covers weights and tokenizer.

        The whole list is the key, because in another list the embedding of a sentence may differ in its last bit.
        """
        folder = self.folder / "texts" / digest(json.dumps([ENCODING, model, *texts]).encode(), 16)
        drop_leftovers(folder)
        return CacheShard(folder, width)


class KeySet:
    """A set of digests that also knows the row each one came from; cheap to send to worker processes."""

    def __init__(self, keys: Keys) -> None:
        flat = _flat(keys)
        order = np.argsort(flat, kind="stable")
        self._sorted, self._rows = flat[order], np.append(order, -1)

    def __len__(self) -> int:
        return len(self._sorted)

    def __contains__(self, key: object) -> bool:
        return bool(self.find(np.asarray(key))[0] >= 0)

    def find(self, keys: Keys) -> Ints:
        """Return the first row of each digest, -1 for unknown ones."""
        wanted = _flat(keys)
        first, end = (np.searchsorted(self._sorted, wanted, side) for side in ("left", "right"))
        return np.where(first < end, self._rows[first], -1)


def _flat(keys: Keys) -> NDArray[np.bytes_]:
    # NumPy ignores trailing zeros of byte strings, which is harmless here: all digests have the same length.
    return np.ascontiguousarray(keys, dtype=np.uint8).reshape(-1).view(f"S{KEY_BYTES}")


class CacheShard:
    """Vectors by digest, such as the embeddings of one model: immutable part files, named by their content's digest.

    Parts are written atomically, so a killed process leaves only complete ones. A part whose content does not match
    its name is deleted and its images are embedded again.
    """

    def __init__(self, folder: Path, width: int, dtype: type[np.generic] = np.float32) -> None:
        self.folder, self.width, self.dtype = folder, width, dtype
        files = list[tuple[Path, int]]()
        for path in sorted(folder.glob("*.safetensors")):
            with suppress(OSError):
                files.append((path, path.stat().st_size))
        most = sum(size for _, size in files) // (KEY_BYTES + width * np.dtype(dtype).itemsize)
        keys, self._vectors, n_rows = [np.empty((0, KEY_BYTES), dtype=np.uint8)], empty_rows(most, width, dtype), 0
        for path, size in files:
            if (part := self._read_part(path, size)) is not None:
                keys.append(part[0])
                self._vectors[n_rows : n_rows + len(part[0])] = part[1]
                n_rows += len(part[0])
        self.known = KeySet(np.concatenate(keys))
        self._new: list[tuple[Keys, NDArray[Any]]] = []
        self._last_write = time.monotonic()

    def _read_part(self, path: Path, size: int) -> tuple[Keys, NDArray[Any]] | None:
        """Return the keys and the vectors of a part; one that is damaged is deleted."""
        with suppress(OSError):  # deleted by another process, or a temporary failure: its images are embedded again
            content = path.read_bytes()
            with suppress(Exception):  # whatever is wrong with a part, embedding its images again repairs it
                tensors = load_tensors(content) if digest(content) == path.stem and len(content) == size else {}
                keys, vectors = tensors["keys"], tensors["vectors"]
                are_shapes_right = keys.shape == (len(vectors), KEY_BYTES) and vectors.shape == (len(keys), self.width)
                are_vectors = self.dtype is not np.float32 or is_embedding(vectors).all()
                if are_shapes_right and are_vectors and vectors.dtype == self.dtype:
                    return keys, vectors
            path.unlink(missing_ok=True)
        return None

    def find(self, keys: Keys) -> NDArray[Any]:
        """Return the vectors of known digests, `(items, width)`."""
        return self._vectors[self.known.find(keys)]

    def add(self, keys: Keys, vectors: NDArray[Any]) -> None:
        """Add vectors; they are written from time to time, and when the shard is closed."""
        if len(keys):
            self._new.append((keys, vectors))
        n_rows = sum(len(rows) for rows, _ in self._new)
        if n_rows >= ROWS_PER_PART or time.monotonic() - self._last_write > SECONDS_BETWEEN_PARTS:
            self.flush()

    def flush(self) -> None:
        """Write all added vectors as a new part."""
        self._last_write = time.monotonic()
        if not self._new:
            return
        keys, vectors = (np.concatenate(arrays) for arrays in zip(*self._new, strict=True))
        content = save_tensors({"keys": keys, "vectors": vectors})
        write_whole(self.folder / f"{digest(content)}.safetensors", content)
        self._new.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.flush()


class KnownFiles(CacheShard):
    """The contents of image files that were read before and have not changed since, by position."""

    def __init__(self, images: ImageCollection, cache: EmbeddingCache) -> None:
        folder = cache.folder / "files" / digest(os.fsencode(images.root.absolute()), 12)
        super().__init__(folder, KEY_BYTES, np.uint8)  # the digest of each file, by its stamp
        self._stamps = stamp_images(images)
        self.are_known = (self.known.find(self._stamps) >= 0) & self._stamps.any(axis=1)
        self.keys = np.zeros((len(images), KEY_BYTES), dtype=np.uint8)
        """Digests of the known contents, `(images, 16)`."""
        self.keys[self.are_known] = self.find(self._stamps[self.are_known])

    def remember(self, positions: Ints, keys: Keys) -> None:
        """Remember the contents of files that were read after they were stamped."""
        is_new = self._stamps[positions].any(axis=1) & ~self.are_known[positions]
        self.add(self._stamps[positions[is_new]], keys[is_new])


def stamp_images(images: ImageCollection) -> Keys:
    """Return the stamp of every image file, `(images, 16)`, zeros for images without one."""
    stamps = np.zeros((len(images), KEY_BYTES), dtype=np.uint8)
    now = time.time_ns()
    facts_of_shard = lru_cache(maxsize=1024)(lambda shard: _facts(os.path.abspath(shard), now))  # noqa: PTH100
    working_folder = os.getcwd()  # noqa: PTH109 (paths are joined as text: this runs once per image)
    for position in range(len(images)) if images.kind == "files" else ():
        span = images.span(position)
        if span is None:
            facts = _facts(os.path.join(working_folder, images.files[position]), now)  # noqa: PTH118
        else:
            shard = facts_of_shard(span.shard)
            facts = f"{shard}\n{span.offset} {span.size}" if shard else ""
        if facts:
            stamps[position] = content_key(facts.encode("utf-8", "surrogateescape"))
    return stamps


def stamp_files(files: Sequence[Path], about: str) -> str | None:
    """Return one stamp of several files and a text that says what they are for; None if a file has none."""
    now = time.time_ns()
    facts = [_facts(str(file.absolute()), now) for file in files]
    return digest("\n".join([about, *facts]).encode("utf-8", "surrogateescape")) if all(facts) else None


def _facts(path: str, now: int) -> str:
    """Return what a stamp depends on, or nothing for a file without one."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):  # a name with a NUL character is a ValueError
        return ""
    changed = max(found.st_mtime_ns, found.st_ctime_ns)
    if not stat.S_ISREG(found.st_mode) or changed > now - int(SECONDS_UNTIL_SETTLED * 1e9):
        return ""
    return f"{path}\n{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
