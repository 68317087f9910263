"""Whether test images are in the pool: images with the same content, whatever they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from captune.core.errors import InputError
from captune.data.images import ImageCollection


@dataclass(frozen=True)
class SharedImages:
    """Test images whose file content is also in the pool.

    Attributes:
        pairs: Position in the pool and position in the test set, one pair for each test image that is in the pool.
        n_test: All test images.
    """

    pairs: tuple[tuple[int, int], ...]
    n_test: int

    def __len__(self) -> int:
        return len(self.pairs)

    def __str__(self) -> str:
        if not self.pairs:
            return f"none of the {self.n_test} test images is in the pool"
        return f"{len(self)} of the {self.n_test} test images {'is' if len(self) == 1 else 'are'} in the pool"


def shared_images(pool: ImageCollection, test: ImageCollection) -> SharedImages:
    """Find test images that are in the pool byte for byte; a copy that was encoded anew is not noticed."""
    by_size: dict[int, list[int]] = {}
    for position, size in enumerate(_sizes(pool.paths)):
        by_size.setdefault(size, []).append(position)
    digests: dict[int, dict[bytes, int]] = {}  # only files of a size that occurs on both sides are read
    pairs = []
    for position, size in enumerate(_sizes(test.paths)):
        if size not in by_size:
            continue
        if size not in digests:
            digests[size] = {_digest(pool.paths[i]): i for i in reversed(by_size[size])}
        twin = digests[size].get(_digest(test.paths[position]))
        if twin is not None:
            pairs.append((twin, position))
    return SharedImages(tuple(pairs), len(test))


def _sizes(paths: Sequence[Path]) -> list[int]:
    try:
        return [path.stat().st_size for path in paths]
    except OSError as error:
        raise InputError(f"{error.filename!r} cannot be read: {error.strerror}.") from error


def _digest(path: Path) -> bytes:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
