"""Asking for files by any name, and writing whole files or none: content goes aside until it is complete."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from platformdirs import user_cache_path

from captune.core.errors import CaptuneError

try:
    import fcntl
except ImportError:  # a system without POSIX locks: what a kill leaves behind stays
    fcntl = None  # type: ignore[assignment]

ROWS_AT_ONCE = 8192
LEFTOVERS = ".captune-*.part"
"""Files that are being written, or that a kill in the middle of a write left behind."""
SECONDS_OF_OTHERS = 86_400.0
"""How long files of other machines are left alone: not every shared file system shows a machine the locks of others."""


def cache_folder() -> Path:
    """Return the cache folder: CAPTUNE_CACHE, or the one that the operating system gives to programs."""
    given = os.environ.get("CAPTUNE_CACHE")
    return Path(given) if given else user_cache_path("captune", appauthor=False)


def write_whole(path: Path, content: bytes | str | Iterable[str]) -> None:
    """Write a file atomically; a kill at any moment leaves the old file or the new one.

    Text may come in pieces; it is never held whole then.
    """
    pieces = [content] if isinstance(content, (bytes, str)) else content
    aside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_aside(path.parent) as file:
            aside = Path(file.name)
            for piece in pieces:
                file.write(piece.encode("utf-8") if isinstance(piece, str) else piece)
            file.flush()
            os.fsync(file.fileno())
            aside.chmod(0o666 & ~_umask())
            if fcntl is None:  # such systems rename closed files only
                file.close()
            aside.replace(path)  # still open, and so still locked: nobody takes it for a leftover
        _sync_folder(path.parent)
    except BaseException as error:
        if aside is not None:
            aside.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise CaptuneError(
            f"{str(path)!r} cannot be written: {error.strerror or error}. Check the folder's rights and free space."
        ) from error


def drop_leftovers(folder: Path) -> None:
    """Remove what kills left behind in a folder that processes share; files that are still being written stay."""
    if fcntl is None:
        return
    for path in folder.glob(LEFTOVERS):
        with suppress(OSError):  # its writer holds it or has just renamed it, or there are no locks or rights here
            if not path.name.startswith(_prefix()) and time.time() - path.stat().st_mtime < SECONDS_OF_OTHERS:
                continue
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_named(file, path):
                    path.unlink()
            finally:
                os.close(file)


def _open_aside(folder: Path) -> IO[bytes]:
    """Open a new file with a lock on it, which ends with its process or when it is closed."""
    while True:
        file = tempfile.NamedTemporaryFile(dir=folder, prefix=_prefix(), suffix=".part", delete=False)  # noqa: SIM115
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks: nothing is taken for a leftover there
                fcntl.flock(file, fcntl.LOCK_EX)
        if _is_named(file.fileno(), Path(file.name)):
            return file
        file.close()  # taken for a leftover between its first moment and its lock


def _sync_folder(folder: Path) -> None:
    """Bring a new name to disk, so that files outlast a power cut in the order in which they were written."""
    with suppress(OSError):  # not every system lets folders be synced
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _prefix() -> str:
    """Return how the names of this machine's unfinished files begin."""
    machine = os.uname().nodename if hasattr(os, "uname") else ""
    return f".captune-{digest(machine.encode(), 4)}-"


def _is_named(file: int, path: Path) -> bool:
    """Return whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def digest(content: bytes, size: int = 16) -> str:
    """Return the BLAKE2b digest of bytes as hexadecimal text; `size` is in bytes."""
    return hashlib.blake2b(content, digest_size=size).hexdigest()


def is_folder(path: str | Path) -> bool:
    """Return whether a folder is there; a name that the system refuses (too long, with NUL) is none."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def is_file(path: str | Path) -> bool:
    """Return whether a file is there; a name that the system refuses (too long, with NUL) is none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def write_json(path: Path, content: Any) -> None:  # noqa: ANN401 (anything that JSON can hold)
    """Write JSON atomically, readable and in a stable order of keys."""
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield rows as CSV text, some at a time."""
    remaining = chain([header], rows)
    while chunk := list(islice(remaining, ROWS_AT_ONCE)):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(chunk)
        yield text.getvalue()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
