"""Images with more than 8 bits per channel or with floats, scaled to 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = (1.0, 255.0, 1023.0, 4095.0, 16383.0, 65535.0)
"""Largest values of floats, and of 8, 10, 12, 14 and 16 bits."""
PIXELS_PER_OUTLIER = 500
"""One value in so many may lie outside the range: a hot pixel must not turn the rest black."""


def to_8_bits(values: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    """Return values scaled to 0 to 255, and which range was guessed; empty if nothing had to be guessed.

    The largest value is that of the smallest usual bit depth that holds the values, since a file of 16 bits often
    contains 12. Values below zero, or above 16 bits, have no usual range: there, the smallest becomes black and the
    largest white; so it is for floats that would all be black.
    """
    is_finite = np.isfinite(values)
    if not is_finite.any():
        raise ValueError("no value is a finite number")
    finite = np.where(is_finite, values.astype(np.float64), 0.0)
    low, high = _robust_range(finite)
    depths = LARGEST[1:] if values.dtype.kind == "u" else LARGEST
    white = next((largest for largest in depths if high <= largest), None)
    if low < 0 or white is None or (values.dtype.kind == "f" and 0 < high < 1 / 255):
        low = min(low, 0.0)
        white = high if high > low else low + 1.0
        is_guessed = True
    else:
        is_guessed = bool(finite.max(initial=0.0) > white or finite.min(initial=0.0) < 0 or white in LARGEST[2:5])
        is_guessed |= values.dtype == np.uint16 and white < LARGEST[-1]
        low = 0.0
    scaled = np.clip(np.round((finite - low) * (255.0 / (white - low))), 0, 255).astype(np.uint8)
    return scaled, f"{low:g} to {white:g}" if is_guessed else ""


def stretch_high_bytes(values: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], str]:
    """Return the high bytes of 16-bit channels, scaled by the bits that are used, and which range was guessed.

    Pillow drops the low bytes of color images: of 12 bits, four are left, which are enough but would be near-black.
    """
    if not values.any():
        raise ValueError("its 16-bit channels have no value above 255")
    rank = values.size - 1 - values.size // PIXELS_PER_OUTLIER
    largest = np.partition(values, rank, axis=None)[rank]
    white = next(depth for depth in LARGEST[2:] if largest <= depth // 256)
    stretched = np.clip(np.round(values * (255.0 / (white // 256))), 0, 255).astype(np.uint8)
    return stretched, f"0 to {white:g}" if white < LARGEST[-1] else ""


def _robust_range(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the smallest and the largest value, apart from a few outliers."""
    flat = values.ravel()
    n_outliers = len(flat) // PIXELS_PER_OUTLIER
    if not n_outliers:
        return float(flat.min(initial=0.0)), float(flat.max(initial=0.0))
    parted = np.partition(flat, (n_outliers, len(flat) - 1 - n_outliers))
    return float(parted[n_outliers]), float(parted[-1 - n_outliers])
