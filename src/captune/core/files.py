"""Atomic file writing, digests, and checks for files and folders."""

from __future__ import annotations

import csv
import hashlib
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
except ImportError:  # without POSIX locks, temporary files of killed processes stay
    fcntl = None  # type: ignore[assignment]

ROWS_AT_ONCE = 8192
LEFTOVERS = ".captune-*.part"
"""Temporary files: being written, or left behind by a killed process."""
SECONDS_OF_OTHERS = 86_400.0
"""Age at which temporary files of other machines are deleted: some shared file systems do not share locks."""


def cache_folder() -> Path:
    """Return the cache folder: CAPTUNE_CACHE, or the one of the operating system; a temporary one without a home."""
    given = os.environ.get("CAPTUNE_CACHE")
    if given:
        return Path(given)
    with suppress(RuntimeError):  # the user of a container may have no home
        usual = user_cache_path("captune", appauthor=False)
        if usual.is_absolute() and "~" not in usual.parts:
            return usual
    return Path(tempfile.gettempdir()) / f"captune-{os.getuid()}"


def write_whole(path: Path, content: bytes | str | Iterable[str]) -> None:
    """Write a file atomically, from content or from pieces of text: a kill leaves the old file or the new one."""
    pieces = [content] if isinstance(content, (bytes, str)) else content
    aside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_aside(path.parent) as file:
            aside = Path(file.name)
            for piece in pieces:
                # Bytes of paths that are not UTF-8 are escaped; in JSON, the escape means the same character.
                file.write(piece.encode("utf-8", "backslashreplace") if isinstance(piece, str) else piece)
            file.flush()
            os.fsync(file.fileno())
            aside.chmod(0o666 & ~_umask())
            if fcntl is None:  # Windows only renames closed files
                file.close()
            aside.replace(path)  # still open and locked, so that no other process deletes it
        sync_folder(path.parent)
    except BaseException as error:
        if aside is not None:
            aside.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise CaptuneError(
            f"{str(path)!r} cannot be written: {error.strerror or error}. Check permissions and free space."
        ) from error


def drop_leftovers(folder: Path) -> None:
    """Delete temporary files of killed processes in a shared folder; files that are being written stay."""
    if fcntl is None:
        return
    for path in folder.glob(LEFTOVERS):
        with suppress(OSError):  # locked or just renamed by its writer, or no permission
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
    """Open a new temporary file, locked until it is closed or its process ends."""
    while True:
        file = tempfile.NamedTemporaryFile(dir=folder, prefix=_prefix(), suffix=".part", delete=False)  # noqa: SIM115
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks, where nothing is deleted
                fcntl.flock(file, fcntl.LOCK_EX)
        if _is_named(file.fileno(), Path(file.name)):
            return file
        file.close()  # deleted by another process before it was locked


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that files survive a power failure in the order in which they were written."""
    with suppress(OSError):  # some systems cannot sync folders
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _prefix() -> str:
    """Return the prefix of this machine's temporary files."""
    machine = os.uname().nodename if hasattr(os, "uname") else ""
    return f".captune-{digest(machine.encode(), 4)}-"


def _is_named(file: int, path: Path) -> bool:
    """Return whether an open file still has this path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def digest(content: bytes, size: int = 16) -> str:
    """Return the BLAKE2b digest of bytes as hexadecimal text; `size` is in bytes."""
    return hashlib.blake2b(content, digest_size=size).hexdigest()


def is_folder(path: str | Path) -> bool:
    """Return whether a folder exists; False for a path that the system rejects (too long, with NUL)."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def is_file(path: str | Path) -> bool:
    """Return whether a file exists; False for a path that the system rejects (too long, with NUL)."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def write_json(path: Path, content: Any) -> None:  # noqa: ANN401 (anything that JSON can hold)
    """Write JSON atomically, indented and with keys in the given order."""
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield rows as CSV text, in chunks."""
    remaining = chain([header], rows)
    while chunk := list(islice(remaining, ROWS_AT_ONCE)):
        lines = _Lines()
        csv.writer(lines, lineterminator="\r\n").writerows(chunk)
        yield "".join(lines)


class _Lines(list[str]):
    """Rows of CSV text that end with a line feed; before Python 3.13, only the characters of a row's end are quoted."""

    def write(self, line: str) -> None:
        """Add one row."""
        self.append(line[:-2] + "\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
