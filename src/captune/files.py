"""Asking for files by any name, and writing whole files or none: content goes aside until it is complete."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from captune.errors import CaptuneError

ROWS_AT_ONCE = 8192


def cache_folder() -> Path:
    """Return the user's cache folder: CAPTUNE_CACHE, or captune below XDG_CACHE_HOME or ~/.cache."""
    if os.environ.get("CAPTUNE_CACHE"):
        return Path(os.environ["CAPTUNE_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "captune"


def write_whole(path: Path, content: bytes | str | Iterable[str]) -> None:
    """Write a file atomically; a kill at any moment leaves the old file or the new one.

    Text may come in pieces; it is never held whole then.
    """
    pieces = [content] if isinstance(content, (bytes, str)) else content
    aside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".captune-", suffix=".part", delete=False) as file:
            aside = Path(file.name)
            for piece in pieces:
                file.write(piece.encode("utf-8") if isinstance(piece, str) else piece)
            file.flush()
            os.fsync(file.fileno())
        aside.chmod(0o666 & ~_umask())
        aside.replace(path)
    except BaseException as error:
        if aside is not None:
            aside.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise CaptuneError(
            f"{str(path)!r} cannot be written: {error.strerror or error}. Check the folder's rights and free space."
        ) from error


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
