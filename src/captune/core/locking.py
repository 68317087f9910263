"""One process at a time on a folder: a lock that the system takes back when its process ends, however it ends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock as ThreadLock

from captune.core.errors import RunFolderError

try:
    import fcntl
except ImportError:  # a system without POSIX locks: folders are shared at one's own risk
    fcntl = None  # type: ignore[assignment]

SECONDS_BETWEEN_TRIES = 0.2
_held: dict[str, int] = {}
"""Locks by the process that took them: the system tells processes apart, not threads; a fork has this but no lock."""
_guard = ThreadLock()


@contextmanager
def hold(path: Path, busy: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file, or raise `busy` with who holds it after `wait` seconds; the file stays, its lock does not.

    Record locks belong to a process and not to an open file: workers that outlive a killed run do not keep them.
    """
    name, deadline = os.path.realpath(path), time.monotonic() + wait
    while (file := _take(name)) is None:
        if time.monotonic() >= deadline:
            raise RunFolderError(f"{busy}{_owner(name)}. Wait for it, or end it first.")
        time.sleep(SECONDS_BETWEEN_TRIES)
    try:
        yield
    finally:
        with _guard:
            os.close(file)
            _held.pop(name, None)


def _take(name: str) -> int | None:
    """Return the open file of a lock that is ours now, None where it is another's."""
    with _guard:
        if _is_ours(name):
            return None
        try:
            file = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunFolderError(f"{name!r} cannot be written: {error.strerror}.") from error
        if _lock(file) and _is_still_there(file, name):
            with suppress(OSError):  # on a full disk it holds as well without a name
                os.ftruncate(file, 0)
                os.write(file, _own_name().encode("ascii", "replace"))
            _held[name] = os.getpid()
            return file
        os.close(file)
        return None


def _lock(file: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is_still_there(file: int, name: str) -> bool:
    """Return whether the file that was locked is the one of this name: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(name))  # noqa: PTH116 (a name as it was resolved)
    except FileNotFoundError:
        return False


def _is_ours(name: str) -> bool:
    return _held.get(name) == os.getpid()


def _own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _owner(name: str) -> str:
    """Return who holds a lock; one of our own is not looked into, because closing its file would free it."""
    with _guard, suppress(OSError):
        said = _own_name() if _is_ours(name) else Path(name).read_bytes()[:200].decode("ascii", "replace").strip()
        return f" ({said})" if said else ""
    return ""
