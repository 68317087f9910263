"""Array types, a few functions of arrays, and arrays too large for memory, which are mapped from unnamed files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NewType, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from captune.core.errors import CaptuneError, InputError, damaged_model
from captune.core.files import cache_folder

Floats: TypeAlias = NDArray[np.float32]
"""Embeddings `(images, width)`, probabilities `(images, classes)`: float32, C order, possibly memory-mapped."""

Ints: TypeAlias = NDArray[np.int64]
"""Image positions, class ids and counts."""

Positions = NewType("Positions", Ints)
"""Positions in a collection that may hold unreadable images: `images.subset(positions)`."""

Rows = NewType("Rows", Ints)
"""Rows of predictions, which count readable images only: `predictions.image_index[rows]` are their positions."""

Bools: TypeAlias = NDArray[np.bool_]
"""Masks."""

KEY_BYTES = 16
Keys: TypeAlias = NDArray[np.uint8]
"""Digests of contents, which caches use as keys: `(items, 16)`, or one digest `(16,)`."""

LARGE_BYTES = 1 << 28
"""Larger arrays are memory-mapped."""
NEGLIGIBLE = 1e-30
"""Smaller probabilities are zero: products with numbers near the smallest float32 take up to thirty times as long."""
CHUNK_BYTES = 1 << 24
"""Size of the parts that are computed at once."""


def content_key(content: bytes) -> Keys:
    """Return the digest that caches use for an image, `(16,)`."""
    return np.frombuffer(hashlib.blake2b(content, digest_size=KEY_BYTES).digest(), dtype=np.uint8)


def unit_rows(vectors: Floats) -> Floats:
    """Return the rows scaled to length one; a row of zeros stays zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)


def check_embeddings(vectors: Floats, source: str) -> Floats:
    """Return embeddings `(rows, width)` if all are finite and none is zero; otherwise the model is at fault."""
    is_wrong = ~is_embedding(vectors)
    if is_wrong.any():
        n_wrong = f"{int(is_wrong.sum())} of {len(vectors)}"
        raise damaged_model(f"{source!r} makes embeddings that are not finite or zero ({n_wrong}).")
    return vectors


def is_embedding(vectors: Floats) -> Bools:
    """Return which rows are finite and not zero, `(rows,)`."""
    return np.asarray(np.isfinite(vectors).all(axis=-1) & vectors.any(axis=-1))


def check_probabilities(probabilities: Floats) -> Floats:
    """Return probabilities `(images, classes)` if all are finite; otherwise the model is at fault."""
    if not np.isfinite(probabilities).all():
        raise damaged_model("The classifier gives probabilities that are not finite.")
    return probabilities


def as_embeddings(vectors: ArrayLike, rows: str) -> Floats:
    """Return embeddings `(rows, width)` as float32, scaled to length one unless they are; `rows` says what a row is."""
    try:
        array = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected embeddings of shape ({rows}, width): {error}.") from error
    if array.ndim != 2 or not array.shape[1]:
        raise InputError(f"Expected embeddings of shape ({rows}, width), got {array.shape}.")
    lengths = np.sqrt(np.einsum("nd,nd->n", array, array))
    if not np.isfinite(lengths).all():
        raise InputError(
            f"Some embeddings of {rows} are not finite, the first in row {(~np.isfinite(lengths)).argmax()}."
        )
    return array if np.abs(lengths - 1).max(initial=0.0) <= 0.01 else unit_rows(array)


def canonical_order(vectors: Floats) -> Ints:
    """Return an order of embeddings `(rows, width)` that depends on the embeddings alone, not on their positions.

    Rows are sorted by a digest, so neighbors in this order have nothing in common: any part of it is a random sample.

    Examples:
        >>> import numpy as np
        >>> vectors, shuffled = np.eye(5, dtype=np.float32), np.array([3, 1, 4, 0, 2])
        >>> np.array_equal(shuffled[canonical_order(vectors[shuffled])], canonical_order(vectors))
        True
    """
    multipliers = np.random.default_rng(0).integers(1, 2**63, size=vectors.shape[1], dtype=np.uint64) | np.uint64(1)
    digests = np.empty(len(vectors), dtype=np.uint64)
    for rows in row_parts(len(vectors), 8 * vectors.shape[1]):  # small enough for the cache of the processor
        bits = np.ascontiguousarray(vectors[rows] + np.float32(0), dtype=np.float32).view(np.uint32)
        # Integers modulo 2^64 are exact, so the digest of a row is the same wherever the row is.
        digests[rows] = bits.astype(np.uint64) @ multipliers
    mixed = (digests ^ (digests >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.argsort(mixed ^ (mixed >> np.uint64(29)), kind="stable")


def evenly_spaced(n: int, most: int) -> Ints:
    """Return up to `most` evenly spaced positions from 0 to n - 1, at least one."""
    return np.unique(np.linspace(0, max(0, n - 1), max(1, min(n, most))).astype(np.int64))


def softmax_rows(scores: Floats) -> Floats:
    """Return the softmax of each row, without overflow."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights[weights < NEGLIGIBLE] = 0.0
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)


def empty_rows(n_rows: int, width: int, dtype: type[np.generic] = np.float32) -> NDArray[Any]:
    """Return an uninitialized array `(rows, width)`; a large one is a file in the cache folder while it is in use."""
    n_bytes = np.dtype(dtype).itemsize * n_rows * width
    if n_bytes <= LARGE_BYTES:
        return np.empty((n_rows, width), dtype=dtype)
    folder = cache_folder() / "scratch"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Reserve the space now: if the disk fills up later, the process is killed without an error message.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, n_bytes)
            else:
                file.truncate(n_bytes)
            return np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=(n_rows, width)))
    except OSError as error:
        raise CaptuneError(
            f"{n_bytes / 1e9:.1f} GB cannot be reserved in {str(folder)!r} (CAPTUNE_CACHE): {error.strerror or error}."
        ) from error


def row_parts(n_rows: int, width: int) -> Iterator[slice]:
    """Yield slices of rows, a few megabytes each."""
    step = max(1, CHUNK_BYTES // (4 * max(1, width)))
    yield from (slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def fill_rows(n_rows: int, width: int, part: Callable[[slice], Floats], width_of_input: int = 0) -> Floats:
    """Return an array `(rows, width)`, computed part by part."""
    widest = max(width, width_of_input)
    if 4 * n_rows * widest <= CHUNK_BYTES:
        return part(slice(0, n_rows))
    filled = empty_rows(n_rows, width)
    for rows in row_parts(n_rows, widest):
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
