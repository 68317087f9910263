"""Digests of image contents, which caches use as keys."""

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


def content_key(content: bytes) -> Keys:
    """Return the digest that caches use for an image, `(16,)`."""
    return np.frombuffer(hashlib.blake2b(content, digest_size=KEY_BYTES).digest(), dtype=np.uint8)


def _flat(keys: Keys) -> NDArray[np.bytes_]:
    # NumPy ignores trailing zeros of byte strings, which is harmless here: all digests have the same length.
    return np.ascontiguousarray(keys, dtype=np.uint8).reshape(-1).view(f"S{KEY_BYTES}")
