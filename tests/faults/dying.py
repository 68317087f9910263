"""What is done to a process from inside: it dies before a change of a file, its clock jumps, its images change."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")


def changed_path(event: str, arguments: Sequence[Any]) -> str | None:
    """Return the path that an audit event of Python is about to change, or None."""
    if event == "open":
        path, _, flags = arguments
        is_change = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return os.fsdecode(path) if is_change and isinstance(path, (str, bytes)) else None
    if event in EVENTS and isinstance(arguments[0], (str, bytes, os.PathLike)):
        return os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100
    return None


def at_change(n: int, folder: str, act: Callable[[], None]) -> None:
    """Do something once, before the n-th change below a folder."""
    left = [n]
    inside = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118

    def hook(event: str, arguments: Sequence[Any]) -> None:
        if event not in ("open", *EVENTS) or left[0] <= 0:
            return
        path = changed_path(event, arguments)
        if path is not None and os.path.realpath(path).startswith(inside):
            left[0] -= 1
            if left[0] == 0:
                act()

    sys.addaudithook(hook)


def die_at_change(n: int, folder: str) -> None:
    """End without a word before the n-th change below a folder."""
    at_change(n, folder, lambda: os.kill(os.getpid(), signal.SIGKILL))


def count_changes(folder: str, target: str) -> None:
    """Append a letter to a file for every change below a folder."""
    counter = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    inside = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118

    def hook(event: str, arguments: Sequence[Any]) -> None:
        if event in ("open", *EVENTS):
            path = changed_path(event, arguments)
            if path is not None and os.path.realpath(path).startswith(inside):
                os.write(counter, b".")

    sys.addaudithook(hook)


def flush_often() -> None:
    """Write a part of the embedding cache after every batch."""

    from captune.embeddings import cache

    cache.SECONDS_BETWEEN_PARTS = -1.0


def jump_clock(seed: int) -> None:
    """Let the wall clock jump by up to ten years, back and forth, at every look at it."""
    generator, real = random.Random(seed), time.time
    time.time = lambda: real() + generator.uniform(-3e8, 3e8)
    time.gmtime = lambda seconds=None, made=time.gmtime: made(time.time() if seconds is None else seconds)


def remove_when(n: int, folder: str, path: str) -> None:
    """Remove a file before the n-th change below a folder."""
    at_change(n, folder, lambda: Path(path).unlink(missing_ok=True))


def replace_when(n: int, folder: str, path: str, by: str) -> None:
    """Replace a file's content before the n-th change below a folder."""

    def act() -> None:
        Path(path).write_bytes(Path(by).read_bytes())

    at_change(n, folder, act)


def limit_files(n_bytes: int) -> None:
    """Let every file end at a size, as on a disk that is full."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
