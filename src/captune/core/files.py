"""Whole files and folders, locks and digests; cards: JSON files whose format and version are checked first."""

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from platformdirs import user_cache_path
from pydantic import TypeAdapter, ValidationError

from captune.core.errors import CaptuneError, RunFolderError

T = TypeVar("T")
ROWS_AT_ONCE = 8192
MAX_BYTES = 1 << 28
MAX_DEPTH = 64
DIGEST = "digest"
"""Key of the digest in a card that must not be edited."""
LEFTOVERS = ".captune-*.part"
"""Temporary files: being written, or left behind by a killed process."""
SECONDS_OF_LEFTOVERS = 86_400.0
"""Age at which temporary files in a shared folder are deleted: by then, nobody is writing them any more."""
NEW = ".captune-new"
"""Folder inside the target in which new files are written; the target itself may be a mount point or a link."""
is_file, is_folder = os.path.isfile, os.path.isdir
"""False for a path that the system rejects (too long, with NUL), where pathlib raises an error before Python 3.14."""
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
        raise _cannot_write(str(path), error) from error


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
        owner = ""
        with suppress(OSError):
            name = path.read_bytes()[:200].decode("utf-8", "replace").strip()
            owner = f" ({name})" if name else ""
        raise RunFolderError(f"{busy}{owner}. Wait for it to finish, or stop it first.") from None
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
            raise _cannot_write(str(target), error) from error
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
            for path in (target / name for name in others):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            (target / card).unlink(missing_ok=True)
            sync_folder(target)
        for name in files:
            if (staging / name).is_file():
                (target / name).parent.mkdir(exist_ok=True)
                (staging / name).replace(target / name)
        sync_folder(target)
    except OSError as error:
        raise _cannot_write(str(target), error) from error
    shutil.rmtree(staging, ignore_errors=True)


def refuse_links(folder: Path, names: Iterable[str], follow: bool = False) -> None:
    """Raise an error if one of these names in a folder is a link, a pipe or a device: nothing is written through it.

    To read, links are followed, but reading a pipe or a device may never end.
    """
    for name in names:
        with suppress(OSError):  # it does not exist, or opening it is an error as well
            mode = (folder / name).stat(follow_symlinks=follow).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise RunFolderError(
                    f"{str(folder / name)!r} is a link, a pipe or a device, expected a file or folder. Remove it."
                )


def _cannot_write(path: str, error: OSError) -> CaptuneError:
    return CaptuneError(f"{path!r} cannot be written: {error.strerror or error}. Check permissions and free space.")


def digest(content: bytes, size: int = 16) -> str:
    """Return the BLAKE2b digest of bytes as hexadecimal text; `size` is in bytes."""
    return hashlib.blake2b(content, digest_size=size).hexdigest()


def write_json(path: Path, content: Any) -> None:  # noqa: ANN401 (anything that JSON can hold)
    """Write JSON atomically, indented and with keys in the given order."""
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield rows as CSV text, in chunks."""
    remaining, lines = chain([header], rows), list[str]()
    sink: Any = SimpleNamespace(write=lambda line: lines.append(f"{line[:-2]}\n"))
    # Rows end with a line feed, but before Python 3.13, only the characters of the writer's row end are quoted.
    writer = csv.writer(sink, lineterminator="\r\n")
    while chunk := list(islice(remaining, ROWS_AT_ONCE)):
        writer.writerows(chunk)
        yield "".join(lines)
        lines.clear()


def read_json(path: Path) -> Any:  # noqa: ANN401
    """Return the content of a JSON file; one that is not JSON, too large or nested too deeply is a ValueError."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("it is not a regular file")  # reading a pipe could block forever
    if facts.st_size > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES:,} bytes")
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:  # noqa: ANN401
    """Return the content of JSON text; text that is not JSON or is nested too deeply is a ValueError."""
    with suppress(RecursionError):
        content = json.loads(text)
        level = [content]
        for _ in range(MAX_DEPTH + 1):
            if not (level := [value for value in level if isinstance(value, (dict, list))]):
                return content
            level = [child for value in level for child in (value.values() if isinstance(value, dict) else value)]
    raise ValueError(f"the content is nested more than {MAX_DEPTH} levels deep")


def read_card(path: Path, format: str, version: int, missing: str) -> dict[str, Any]:
    """Return the content of a card; `missing` is the error message if there is no such file."""
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunFolderError(missing) from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{str(path)!r} cannot be read: {error}.") from error
    return check_card(content, str(path), format, version)


def check_card(content: Any, source: str, format: str, version: int) -> dict[str, Any]:  # noqa: ANN401
    """Return the content if it is a card of this format, and not of a newer version."""
    if not isinstance(content, dict) or content.get("format") != format:
        raise RunFolderError(f"{source!r} is not a {format} file.")
    if content.get("version") not in range(1, version + 1):
        raise RunFolderError(
            f"{source!r} has format version {content.get('version')!r}, but this captune reads versions up to "
            f"{version}. Upgrade captune: pip install -U captune."
        )
    return content


def add_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a card with a digest of everything in it."""
    plain = json.loads(json.dumps({key: value for key, value in content.items() if key != DIGEST}))
    return {**content, DIGEST: digest(json.dumps(plain, sort_keys=True).encode())}


def check_digest(content: Mapping[str, Any], source: str) -> None:
    """Raise an error if a card was changed since it was sealed; cards of captune 0.1.0 have no digest."""
    if content.get(DIGEST) and content[DIGEST] != add_digest(content)[DIGEST]:
        raise RunFolderError(
            f"{source!r} does not match its own digest: it was damaged or edited. Copy it again, or make it again."
        )


def build_card(cls: type[T], content: dict[str, Any], source: str) -> T:
    """Return a card as a dataclass, or raise an error that lists the fields that are wrong."""
    try:
        return TypeAdapter(cls).validate_python(content)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors())
        raise RunFolderError(f"{source!r} is damaged: {problems}.") from error
