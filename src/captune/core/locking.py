"""Locks that keep a folder to one process at a time and end with that process, however it ends."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from captune.core.errors import RunFolderError

_NO_LOCKS_HERE = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}
"""What file systems without locks answer; there, folders are shared at the user's own risk."""


@contextmanager
def hold(path: Path, busy: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file, or raise `busy` with the name of its holder after `wait` seconds; the file itself stays."""
    # The file must outlive the lock: where a run was killed, it is the sign that there is something to resume.
    lock = FileLock(path, timeout=wait, preserve_lock_file=True, poll_interval=0.2)
    try:
        lock.acquire()
    except Timeout:
        raise RunFolderError(f"{busy}{_holder(path)}. Wait for it to finish, or stop it first.") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise RunFolderError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
    try:
        with suppress(OSError):  # the name is a courtesy; the lock also holds without it, as on a full disk
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    with suppress(OSError):
        name = path.read_bytes()[:200].decode("utf-8", "replace").strip()
        return f" ({name})" if name else ""
    return ""
