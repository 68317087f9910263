"""Room for large arrays: what is too large for memory lies in a nameless file that is mapped into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import numpy as np

from captune.core.arrays import Floats, Ints
from captune.core.errors import CaptuneError
from captune.core.files import cache_folder

LARGE_BYTES = 1 << 28
"""Arrays above this size are mapped."""
CHUNK_BYTES = 1 << 24
"""What is worked on at once."""


def is_large(n_rows: int, width: int) -> bool:
    """Return whether an array `(rows, width)` of float32 is too large to be held in memory."""
    return 4 * n_rows * width > LARGE_BYTES


def empty_rows(n_rows: int, width: int) -> Floats:
    """Return an array `(rows, width)` to be filled; a large one lies in the cache folder until nothing refers to it."""
    if not is_large(n_rows, width):
        return np.empty((n_rows, width), dtype=np.float32)
    n_bytes = 4 * n_rows * width
    folder = cache_folder() / "scratch"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Reserved at once: a disk that fills up later would end the process without a word.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, n_bytes)
            else:
                file.truncate(n_bytes)
            return np.asarray(np.memmap(file, dtype=np.float32, mode="r+", shape=(n_rows, width)))
    except OSError as error:
        raise CaptuneError(
            f"{n_bytes / 1e9:.1f} GB of scratch space in {str(folder)!r} cannot be had: {error.strerror or error}. "
            "Free some space, or set CAPTUNE_CACHE to a folder on a larger disk."
        ) from error


def row_parts(n_rows: int, width: int) -> Iterator[slice]:
    """Yield slices over rows that are worked on at once, a few megabytes each."""
    step = max(1, CHUNK_BYTES // (4 * max(1, width)))
    yield from (slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def fill_rows(n_rows: int, width: int, part: Callable[[slice], Floats]) -> Floats:
    """Return `(rows, width)` from a function of some of its rows."""
    if 4 * n_rows * width <= CHUNK_BYTES:
        return part(slice(0, n_rows))
    filled = empty_rows(n_rows, width)
    for rows in row_parts(n_rows, width):
        filled[rows] = part(rows)
    return filled


def take_rows(array: Floats, rows: Ints) -> Floats:
    """Return `array[rows]`, without a copy where these are all rows in order."""
    if len(rows) == len(array) and np.array_equal(rows, np.arange(len(array))):
        return array
    return fill_rows(len(rows), array.shape[1], lambda part: array[rows[part]])
