"""Writing whole files and folders, locks, digests, and checks for files and folders."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from captune.core.errors import CaptuneError, RunFolderError

ROWS_AT_ONCE = 8192
LEFTOVERS = ".captune-*.part"
"""Temporary files: being written, or left behind by a killed process."""
SECONDS_OF_LEFTOVERS = 86_400.0
"""Age at which temporary files in a shared folder are deleted: by then, nobody is writing them any more."""
NEW = ".captune-new"
"""Folder inside the target in which new files are written; the target itself may be a mount point or a link."""
_NO_LOCKS_HERE = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}
"""Errors of file systems without locks; there, folders are shared at the user's own risk."""


def cache_folder() -> Path:
    """Return the cache folder: CAPTUNE_CACHE, or the one of the operating system; a temporary one without a home."""
    given = os.environ.get("CAPTUNE_CACHE")
    if given:
        return Path(given)
    with suppress(RuntimeError):  # the user of a container may have no home
        usual = user_cache_path("captune", appauthor=False)
        if usual.is_absolute() and "~" not in usual.parts:
            return usual
    folder = Path(tempfile.gettempdir()) / f"captune-{os.getuid()}"
    with suppress(FileNotFoundError):
        facts = folder.lstat()
        if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode):
            raise CaptuneError(
                f"The cache folder {str(folder)!r} belongs to another user. Choose one with CAPTUNE_CACHE=FOLDER."
            )
    return folder


def write_whole(path: Path, content: bytes | str | Iterable[str]) -> None:
    """Write a file atomically, from content or from pieces of text: a kill leaves the old file or the new one."""
    pieces = [content] if isinstance(content, (bytes, str)) else content
    aside = path.parent / f".captune-{os.urandom(8).hex()}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("xb") as file:
            for piece in pieces:
                # Bytes of paths that are not UTF-8 are escaped; in JSON, the escape means the same character.
                file.write(piece.encode("utf-8", "backslashreplace") if isinstance(piece, str) else piece)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)  # a link is replaced, not followed
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if not isinstance(error, OSError):
            raise
        raise CaptuneError(
            f"{str(path)!r} cannot be written: {error.strerror or error}. Check permissions and free space."
        ) from error


def drop_leftovers(folder: Path) -> None:
    """Delete temporary files that a killed process left in a shared folder a day ago or earlier."""
    for path in folder.glob(LEFTOVERS):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > SECONDS_OF_LEFTOVERS:
                path.unlink()


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that files survive a power failure in the order in which they were written."""
    with suppress(OSError):  # some systems cannot sync folders
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def locked(path: Path, busy: str, wait: float = 0.0) -> Iterator[None]:
    """Lock a file until the block or the process ends, or raise `busy` with the name of its owner after `wait` seconds.

    The file itself stays: where a run was killed, it is the sign that there is something to resume.
    """
    refuse_links(path.parent, (path.name,))
    lock = FileLock(path, timeout=wait, preserve_lock_file=True, poll_interval=0.2)
    try:
        lock.acquire()
    except Timeout:
        raise RunFolderError(f"{busy}{_owner(path)}. Wait for it to finish, or stop it first.") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise RunFolderError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
    try:
        with suppress(OSError):  # the name is a courtesy; the lock also works without it, as on a full disk
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        lock.release()


@contextmanager
def replaced(target: Path, files: Sequence[str], others: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a folder for new files, which replace those of `target` when the block has ended without an error.

    `files` are all names that the block may write. It writes the last of them, the card, last: with it, the new files
    are complete. `others` are deleted with the old files.
    """
    staging = target / NEW
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        yield staging
        written = {path.relative_to(staging).as_posix() for path in staging.rglob("*") if not path.is_dir()}
        assert written <= set(files), f"unknown files: {written - set(files)}"
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, OSError):
            raise _cannot_write(target, error) from error
        raise
    finish_replacing(target, files, others)


def finish_replacing(target: Path, files: Sequence[str], others: Sequence[str] = ()) -> None:
    """Move complete new files into place, those of this process or of one that was killed; call it with the lock.

    Until the card exists among the new files, the old ones are untouched. From then on, the new ones count.
    """
    staging, card = target / NEW, files[-1]
    if not (staging / card).is_file():
        return
    folders = {Path(name).parent.as_posix() for name in files} - {"."}
    refuse_links(target, (NEW, *folders, *files))
    refuse_links(staging, (*folders, *files))
    try:
        if (target / card).exists():  # the old card goes last: without it, everything old that must go is gone
            for name in others:
                _remove(target / name)
            (target / card).unlink(missing_ok=True)
            sync_folder(target)
        for name in files:
            if (staging / name).is_file():
                (target / name).parent.mkdir(exist_ok=True)
                (staging / name).replace(target / name)
        sync_folder(target)
    except OSError as error:
        raise _cannot_write(target, error) from error
    shutil.rmtree(staging, ignore_errors=True)


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Raise an error if one of these names in a folder is a link, a pipe or a device: nothing is written through it."""
    refuse_pipes(folder, names, os.lstat)


def refuse_pipes(folder: Path, names: Iterable[str], facts_of: Callable[[Path], os.stat_result] = os.stat) -> None:
    """Raise an error if one of these names in a folder leads to a pipe or a device, which reading may never end."""
    for name in names:
        with suppress(OSError):  # it does not exist, or opening it is an error as well
            mode = facts_of(folder / name).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise RunFolderError(
                    f"{str(folder / name)!r} is a link, a pipe or a device, expected a file or folder of its own. "
                    "Remove it, if you trust the rest of the folder."
                )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _cannot_write(target: Path, error: OSError) -> CaptuneError:
    return CaptuneError(
        f"The folder {str(target)!r} cannot be written: {error.strerror or error}. Check permissions and free space."
    )


def _owner(path: Path) -> str:
    with suppress(OSError):
        name = path.read_bytes()[:200].decode("utf-8", "replace").strip()
        return f" ({name})" if name else ""
    return ""


def digest(content: bytes, size: int = 16) -> str:
    """Return the BLAKE2b digest of bytes as hexadecimal text; `size` is in bytes."""
    return hashlib.blake2b(content, digest_size=size).hexdigest()


def is_folder(path: str | Path) -> bool:
    """Return whether a folder exists; False for a path that the system rejects (too long, with NUL)."""
    return os.path.isdir(path)  # noqa: PTH112 (which raises an error for such a path before Python 3.14)


def is_file(path: str | Path) -> bool:
    """Return whether a file exists; False for a path that the system rejects (too long, with NUL)."""
    return os.path.isfile(path)  # noqa: PTH113


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
