"""Asking for files by any name, and writing whole files or none: content goes aside until it is complete."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from captune.errors import CaptuneError


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file atomically; a kill at any moment leaves the old file or the new one."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    aside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".captune-", suffix=".part", delete=False) as file:
            aside = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.chmod(0o666 & ~_umask())
        aside.replace(path)
    except OSError as error:
        if aside is not None:
            aside.unlink(missing_ok=True)
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
