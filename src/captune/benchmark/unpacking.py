"""Archives, unpacked so that nothing in them can leave its folder, and whole or not at all."""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from captune.core.errors import InputError

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
IGNORED = "__MACOSX"


def is_archive(name: str) -> bool:
    """Return whether a file of this name is one that `unpack` opens."""
    return name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack files into a folder; what is there already stays, and a kill leaves nothing half unpacked."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder, prefix=".unpacking-"))
    try:
        for name, content in _members(archive):
            target = aside / _inside(name, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
        for entry in sorted(aside.iterdir()):
            if not (folder / entry.name).exists():
                entry.rename(folder / entry.name)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise InputError(
            f"{str(archive)!r} cannot be unpacked into {str(folder)!r}: {type(error).__name__}: {error}. "
            "Check the free space, or delete the archive and download it again."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of every file; links and devices are refused."""
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as files:
            for entry in files.infolist():
                if stat.S_ISLNK(entry.external_attr >> 16):
                    raise _refusal(archive, entry.filename, "is a link")
                if not entry.is_dir() and PurePosixPath(entry.filename).parts[:1] != (IGNORED,):
                    yield entry.filename, files.open(entry)
        return
    with tarfile.open(archive, "r:*") as members:
        for member in members:
            if member.isdir():
                continue
            content = members.extractfile(member) if member.isreg() else None
            if content is None:
                raise _refusal(archive, member.name, "is a link or a device")
            yield member.name, content


def _inside(name: str, archive: Path) -> Path:
    """Return a member's path, which stays inside whatever folder it is put into."""
    path = PurePosixPath(name.replace("\\", "/"))
    parts = [part for part in path.parts if part != "."]
    if path.is_absolute() or not parts or any(part == ".." or ":" in part or "\0" in part for part in parts):
        raise _refusal(archive, name, "leads outside the folder")
    return Path(*parts)


def _refusal(archive: Path, name: str, why: str) -> InputError:
    return InputError(f"{str(archive)!r} was not unpacked: {name!r} in it {why}. Do not use this archive.")
