"""A disk that fails once: the n-th change below a folder (open, write, sync, rename, mkdir, remove) is an error."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from captune.core.errors import CaptuneError
from faults.dying import EVENTS, changed_path
from faults.records import record

ERRORS = (errno.ENOSPC, errno.EIO)
CTRL_C = 0
"""Stands for an interrupt instead of an error."""
TOLD = ("cannot be written", "cannot be read or written", "cannot be used", "could not be saved")
Action = Callable[[], object]


class Disk:
    """Counts the changes below a folder, also those of processes that are forked, and raises an error at one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inside = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118
        self.fails_at, self.number = 0, errno.ENOSPC
        self.is_watched = False
        self._shared = mmap.mmap(-1, 8)

    @property
    def count(self) -> int:
        """Return how many changes there were."""
        return int.from_bytes(self._shared[:], "little")

    @count.setter
    def count(self, value: int) -> None:
        self._shared[:] = value.to_bytes(8, "little")

    @contextmanager
    def failing(self, n: int = 0, number: int = errno.ENOSPC) -> Iterator[None]:
        """Let the n-th change inside the block fail, or only count changes if n is 0."""
        self.fails_at, self.number, self.count, self.is_watched = n, number, 0, True
        try:
            yield
        finally:
            self.is_watched = False

    def change(self, path: str) -> None:
        """Count a change, and fail if it is the one."""
        if self.is_watched and os.path.realpath(path).startswith(self.inside):
            self.count += 1
            if self.count == self.fails_at and self.number == CTRL_C:
                raise KeyboardInterrupt
            if self.count == self.fails_at:
                raise OSError(self.number, os.strerror(self.number), path)

    def hook(self, event: str, arguments: Sequence[Any]) -> None:
        """Notice what Python is about to do; an error in an audit hook stops it."""
        if self.is_watched and event in ("open", *EVENTS):
            path = changed_path(event, arguments)
            if path is not None:
                self.change(path)


class _File:
    """A file that is being written, which tells the disk about its writes."""

    def __init__(self, file: IO[bytes], disk: Disk) -> None:
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: bytes) -> int:
        self._disk.change(self._file.name)
        return self._file.write(content)


def watch(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a disk see every change that captune makes."""
    sys.addaudithook(disk.hook)
    opened = tempfile.NamedTemporaryFile

    def fsync(file: int) -> None:  # nothing is really synced: there is no power cut here, and it takes long
        disk.change(os.readlink(f"/proc/self/fd/{file}"))  # noqa: PTH115

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda **options: _File(opened(**options), disk))
    monkeypatch.setattr(os, "fsync", fsync)


def at_every_change(
    disk: Disk, prepare: Action, act: Action, fault: str, every_error: bool, step: int = 1
) -> Iterator[bool]:
    """Act with a failure at each change in turn, or at every `step`-th; yield whether it was told in a sentence."""
    prepare()
    with disk.failing():
        act()
    n_changes = disk.count
    assert n_changes > 0
    for n in range(1, n_changes + 1, step):
        for error in ERRORS if every_error else (ERRORS[n % len(ERRORS)],):
            prepare()
            problem = error_of(disk, n, error, act)
            assert not problem or any(words in problem for words in TOLD), problem
            yield bool(problem)
            record(fault, "clear message" if problem else "same result")


def error_of(disk: Disk, n: int, error: int, act: Action) -> str:
    """Act while the n-th change fails; return what captune says about it, nothing if it goes on."""
    try:
        with disk.failing(n, error):
            act()
    except CaptuneError as problem:
        return str(problem)
    return ""
