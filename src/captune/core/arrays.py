"""Names for the few array types that travel along the straight line."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
"""Embeddings `(images, width)`, probabilities `(images, classes)`: float32, C order, possibly memory-mapped."""

Ints: TypeAlias = NDArray[np.int64]
"""Image positions, class ids and counts."""

Bools: TypeAlias = NDArray[np.bool_]
"""Masks."""


def unit_rows(vectors: Floats) -> Floats:
    """Return the rows scaled to length one; a row of zeros stays zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)


def softmax_rows(scores: Floats) -> Floats:
    """Return the softmax of every row, stable for scores of any size."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)
