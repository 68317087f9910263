"""Array types, and a few functions of arrays."""

from __future__ import annotations

from typing import NewType, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from captune.core.errors import InputError, ModelError

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

_DIGESTED = 1 << 22
"""Numbers that are digested at once."""


def unit_rows(vectors: Floats) -> Floats:
    """Return the rows scaled to length one; a row of zeros stays zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)


def check_embeddings(vectors: Floats, source: str) -> Floats:
    """Return embeddings `(rows, width)` if all are finite and none is zero; otherwise the model is at fault."""
    is_wrong = ~is_embedding(vectors)
    if is_wrong.any():
        raise ModelError(
            f"{source!r} makes embeddings that are not finite or zero ({int(is_wrong.sum())} of {len(vectors)}). Its "
            "weights or its preprocessing are damaged: download or save the model again, or use precision 32-true."
        )
    return vectors


def is_embedding(vectors: Floats) -> Bools:
    """Return which rows are finite and not zero, `(rows,)`."""
    return np.asarray(np.isfinite(vectors).all(axis=-1) & vectors.any(axis=-1))


def check_probabilities(probabilities: Floats) -> Floats:
    """Return probabilities `(images, classes)` if all are finite; otherwise the model is at fault."""
    if not np.isfinite(probabilities).all():
        raise ModelError(
            "The model gives probabilities that are not finite. Its weights, its logit scale or its preprocessing are "
            "damaged: copy or download it again, or adapt again."
        )
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
    step = max(1, _DIGESTED // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), step):
        bits = np.ascontiguousarray(vectors[start : start + step] + np.float32(0), dtype=np.float32).view(np.uint32)
        # Integers modulo 2^64 are exact, so the digest of a row is the same wherever the row is.
        digests[start : start + step] = bits.astype(np.uint64) @ multipliers
    mixed = (digests ^ (digests >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.argsort(mixed ^ (mixed >> np.uint64(29)), kind="stable")


def evenly_spaced(n: int, most: int) -> Ints:
    """Return up to `most` evenly spaced positions from 0 to n - 1, at least one."""
    return np.unique(np.linspace(0, max(0, n - 1), max(1, min(n, most))).astype(np.int64))


def softmax_rows(scores: Floats) -> Floats:
    """Return the softmax of each row, without overflow."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)
