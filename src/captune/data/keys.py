"""Digests of image contents and texts, in sorted arrays that hold tens of millions of them."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Ints

KEY_BYTES = 16
Keys = NDArray[np.uint8]
"""Digests `(items, 16)`, or one digest `(16,)`."""


class KeySet:
    """A set of digests that also knows the row each one came from; cheap to send to worker processes."""

    def __init__(self, keys: Keys) -> None:
        flat = _flat(keys)
        self._rows = np.argsort(flat, kind="stable")
        self._sorted = flat[self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        return bool(self.find(np.asarray(key))[0] >= 0)

    def find(self, keys: Keys) -> Ints:
        """Return the first row of each digest, -1 for unknown ones."""
        wanted = _flat(keys)
        if not len(self):
            return np.full(len(wanted), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(self._sorted, wanted), len(self) - 1)
        return np.where(self._sorted[places] == wanted, self._rows[places], -1)

    def repeated(self) -> list[tuple[int, int]]:
        """Return the first row and the number of rows of every digest that occurs more than once, by row."""
        _, first, counts = np.unique(self._sorted, return_index=True, return_counts=True)
        return sorted((int(self._rows[i]), int(n)) for i, n in zip(first, counts, strict=True) if n > 1)


class KeyList:
    """Digests of texts, added one by one."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, text: str) -> None:
        """Add the digest of a text."""
        self._bytes += hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=KEY_BYTES).digest()

    def keys(self) -> Keys:
        """Return the digests, `(texts, 16)`."""
        return np.frombuffer(self._bytes, dtype=np.uint8).reshape(-1, KEY_BYTES)


def content_key(content: bytes) -> Keys:
    """Return the digest that caches use for an image, `(16,)`."""
    return np.frombuffer(hashlib.blake2b(content, digest_size=KEY_BYTES).digest(), dtype=np.uint8)


def _flat(keys: Keys) -> NDArray[np.bytes_]:
    # NumPy ignores trailing zeros of byte strings, which is harmless here: all digests have the same length.
    return np.ascontiguousarray(keys, dtype=np.uint8).reshape(-1).view(f"S{KEY_BYTES}")
