"""Scratch space: arrays too large for memory are mapped from unnamed files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from captune.core.arrays import Floats, Ints, canonical_order
from captune.core.errors import CaptuneError
from captune.core.files import cache_folder

LARGE_BYTES = 1 << 28
"""Larger arrays are memory-mapped."""
CHUNK_BYTES = 1 << 24
"""Size of the parts that are computed at once."""


def is_large(n_rows: int, width: int) -> bool:
    """Return whether an array `(rows, width)` of float32 is too large for memory."""
    return 4 * n_rows * width > LARGE_BYTES


def empty_rows(n_rows: int, width: int) -> Floats:
    """Return an uninitialized array `(rows, width)`; a large one is a file in the cache folder while it is in use."""
    if not is_large(n_rows, width):
        return np.empty((n_rows, width), dtype=np.float32)
    n_bytes = 4 * n_rows * width
    folder = cache_folder() / "scratch"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Reserve the space now: if the disk fills up later, the process is killed without an error message.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, n_bytes)
            else:
                file.truncate(n_bytes)
            return np.asarray(np.memmap(file, dtype=np.float32, mode="r+", shape=(n_rows, width)))
    except OSError as error:
        raise CaptuneError(
            f"{n_bytes / 1e9:.1f} GB cannot be reserved in {str(folder)!r}: {error.strerror or error}. "
            "Free some space, or set CAPTUNE_CACHE to a folder on a larger disk."
        ) from error


def row_parts(n_rows: int, width: int) -> Iterator[slice]:
    """Yield slices of rows, a few megabytes each."""
    step = max(1, CHUNK_BYTES // (4 * max(1, width)))
    yield from (slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def fill_rows(n_rows: int, width: int, part: Callable[[slice], Floats]) -> Floats:
    """Return an array `(rows, width)`, computed part by part."""
    if 4 * n_rows * width <= CHUNK_BYTES:
        return part(slice(0, n_rows))
    filled = empty_rows(n_rows, width)
    for rows in row_parts(n_rows, width):
        filled[rows] = part(rows)
    return filled


def score_rows(vectors: Floats, width: int, score: Callable[[Floats], Floats]) -> Floats:
    """Return scores `(rows, width)` of embeddings, computed part by part in the canonical order.

    The last bit of a matrix product depends on where in it a row is, so the same images in another order would have
    other scores.
    """
    order, scores = canonical_order(vectors), empty_rows(len(vectors), width)
    for part in row_parts(len(vectors), max(width, vectors.shape[1])):
        scores[order[part]] = score(vectors[order[part]])
    return scores


def take_rows(array: Floats, rows: Ints) -> Floats:
    """Return `array[rows]`, without a copy if these are all rows in order."""
    if len(rows) == len(array) and np.array_equal(rows, np.arange(len(array))):
        return array
    return fill_rows(len(rows), array.shape[1], lambda part: array[rows[part]])


def available_memory() -> int:
    """Return the bytes of memory that can be used, by the system and by the limit of a container."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 40]
    with suppress(OSError, ValueError, IndexError):
        facts = Path("/proc/meminfo").read_text(encoding="ascii").split("MemAvailable:")[1]
        found.append(1024 * int(facts.split()[0]))
    with suppress(OSError, ValueError):  # "max" without a limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(found)
