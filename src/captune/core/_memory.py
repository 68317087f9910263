"""Freed memory that stays with the process: a training step on a CPU needs the same memory again and again."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""What glibc calls these two parameters of `mallopt`."""

BY_DEFAULT = {TRIM_THRESHOLD: 128 * 1024, MMAP_MAX: 65536}
KEEP_ALL = {TRIM_THRESHOLD: -1, MMAP_MAX: 0}


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory for the next step; by default it goes back to the system, which clears every page anew.

    Only glibc lets itself be told so; elsewhere nothing changes. What is computed is the same.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        yield
        return
    library = ctypes.CDLL(None)
    _tell(library, KEEP_ALL)
    try:
        yield
    finally:
        _tell(library, BY_DEFAULT)
        library.malloc_trim(0)


def _tell(library: ctypes.CDLL, parameters: dict[int, int]) -> None:
    for name, value in parameters.items():
        library.mallopt(name, value)
