"""Named dyes, so that captions can name the colors of a photograph."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Ints
from captune.world.fields import Field

DYES: dict[str, tuple[int, int, int]] = {
    "white": (240, 238, 232),
    "cream": (236, 222, 186),
    "grey": (138, 138, 140),
    "black": (28, 27, 30),
    "red": (190, 38, 44),
    "maroon": (98, 26, 36),
    "orange": (228, 124, 38),
    "yellow": (236, 204, 70),
    "brown": (112, 72, 42),
    "tan": (200, 164, 116),
    "green": (58, 134, 66),
    "olive": (112, 112, 52),
    "teal": (30, 128, 130),
    "sky blue": (132, 190, 228),
    "blue": (42, 84, 176),
    "navy": (28, 36, 84),
    "purple": (108, 54, 138),
    "pink": (234, 152, 178),
}
DYE_NAMES = tuple(DYES)
_COLORS = np.array(list(DYES.values()), dtype=np.float32) / 255.0
_BRIGHTNESS = _COLORS @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
_CONTRAST = np.abs(_BRIGHTNESS[:, None] - _BRIGHTNESS[None, :])
_PAIRS = np.argwhere(_CONTRAST > 0.28).astype(np.int64)


def choose_dyes(draws: Field) -> Ints:
    """Return four dyes per image, `(images, 4)`: a ground, a contrasting first ink, and two more."""
    pair = _PAIRS[(draws[:, 0] * len(_PAIRS)).astype(np.int64)]
    second = (draws[:, 1] * len(DYES)).astype(np.int64)
    third = (draws[:, 2] * len(DYES)).astype(np.int64)
    # A second ink that equals the ground or the first ink would vanish: take the next dye that differs.
    for _ in range(2):
        second = np.where((second == pair[:, 0]) | (second == pair[:, 1]), (second + 5) % len(DYES), second)
    return np.stack([pair[:, 0], pair[:, 1], second, third], axis=1)


def dye_colors(dyes: Ints, draws: Field) -> Field:
    """Return the colors of the chosen dyes, `(images, 4, 3)`, each vat a little different."""
    wobble = (draws.reshape(len(dyes), -1, 1) - 0.5) * 0.10
    return np.clip(_COLORS[dyes] + wobble, 0.0, 1.0).astype(np.float32)
