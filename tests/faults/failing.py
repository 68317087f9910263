"""A disk that fails once: the n-th change below a folder (open, write, sync, rename, mkdir, remove) is an error."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from captune.core import files
from faults.dying import EVENTS, changed_path

ERRORS = (errno.ENOSPC, errno.EIO)


class Disk:
    """Counts the changes below a folder, and raises an error at one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inside = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118
        self.fails_at, self.number, self.count = 0, errno.ENOSPC, 0
        self.is_watched = False

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
    opened = files._open_aside

    def fsync(file: int) -> None:  # nothing is really synced: there is no power cut here, and it takes long
        disk.change(os.readlink(f"/proc/self/fd/{file}"))  # noqa: PTH115

    monkeypatch.setattr(files, "_open_aside", lambda folder: _File(opened(folder), disk))
    monkeypatch.setattr(os, "fsync", fsync)
