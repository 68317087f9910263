"""Small files that cost a decoder much time or memory."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def many_scans(n_scans: int, side: int = 2000) -> bytes:
    """Return a progressive JPEG whose last scan is repeated; a decoder runs over the whole image for each."""
    noise = np.random.default_rng(0).integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(noise).resize((side, side)), "JPEG", progressive=True, quality=30)
    last = content.rindex(b"\xff\xda")
    start, scan, end = content[:last], content[last:-2], content[-2:]
    short = scan[:165] if len(scan) > 165 else scan  # libjpeg fills in what is missing
    return start + scan + short * (n_scans - start.count(b"\xff\xda") - 1) + end


def wide_png(side: int = 10_000) -> bytes:
    """Return a 16-bit PNG of many pixels and few bytes."""
    row = np.linspace(0, 65535, side).astype(np.uint16)
    return encoded(Image.fromarray(np.broadcast_to(row, (side, side))), "PNG", compress_level=1)
