"""Sets of 16-byte digests that tens of millions fit into: sorted arrays instead of dictionaries."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Ints

KEY_BYTES = 16
Keys = NDArray[np.uint8]
"""Digests `(items, 16)`."""


class KeySet:
    """Which digests are known, and at which row; small enough to be handed to every worker process."""

    def __init__(self, keys: Keys) -> None:
        high, low = _halves(keys)
        self._order = np.argsort(high, kind="stable")
        self._high, self._low = high[self._order], low[self._order]

    def __len__(self) -> int:
        return len(self._order)

    def __call__(self, key: Keys) -> bool:
        """Return whether one digest is known."""
        high, low = np.ascontiguousarray(key).view(np.uint64)
        place = int(np.searchsorted(self._high, high))
        while place < len(self) and self._high[place] == high:
            if self._low[place] == low:
                return True
            place += 1
        return False

    def find(self, keys: Keys) -> Ints:
        """Return the first row of each digest, -1 where it is not known."""
        high, low = _halves(keys)
        found = np.full(len(keys), -1, dtype=np.int64)
        places = np.searchsorted(self._high, high)
        seeking = np.flatnonzero(places < len(self))
        while len(seeking):  # one turn, unless two digests begin with the same eight bytes
            at = places[seeking]
            seeking, at = seeking[self._high[at] == high[seeking]], at[self._high[at] == high[seeking]]
            is_hit = self._low[at] == low[seeking]
            found[seeking[is_hit]] = self._order[at[is_hit]]
            seeking = seeking[~is_hit]
            places[seeking] += 1
            seeking = seeking[places[seeking] < len(self)]
        return found

    def repeated(self) -> list[tuple[int, int]]:
        """Return the first row and the number of rows of every digest that comes more than once, in order."""
        if not np.any(self._high[1:] == self._high[:-1]):
            return []
        keys = np.stack([self._high, self._low], axis=1)
        _, first, counts = np.unique(keys, axis=0, return_index=True, return_counts=True)
        return sorted((int(self._order[i]), int(n)) for i, n in zip(first, counts, strict=True) if n > 1)


class KeyList:
    """Digests of texts, taken one by one."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, text: str) -> None:
        """Add the digest of a text."""
        self._bytes += text_key(text)

    def keys(self) -> Keys:
        """Return the digests, `(texts, 16)`."""
        return np.frombuffer(self._bytes, dtype=np.uint8).reshape(-1, KEY_BYTES)


def text_key(text: str) -> bytes:
    """Return the digest of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=KEY_BYTES).digest()


def _halves(keys: Keys) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    halves = np.ascontiguousarray(keys, dtype=np.uint8).view(np.uint64).reshape(len(keys), 2)
    return halves[:, 0], halves[:, 1]
