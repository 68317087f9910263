"""Downloads of datasets that resume after an interruption, are checked by digest, and unpacked safely."""

from __future__ import annotations

import hashlib
import http.client
import lzma
import shutil
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from captune.benchmark.datasets.base import DatasetFacts, RemoteFile
from captune.core.errors import InputError
from captune.core.files import write_whole
from captune.core.progress import console

TIMEOUT = 60.0
"""Seconds without data after which a connection is closed."""
CHUNK = 1 << 20
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")


def fetch(facts: DatasetFacts, root: Path, quiet: bool = False) -> None:
    """Download and unpack the missing files of a dataset below a root."""
    if not facts.urls:
        raise InputError(
            f"{facts.title} has no public download address; put its files into {str(root)!r} yourself "
            f"(source: {facts.source})."
        )
    for remote in facts.urls:
        target = root / remote.creates
        if target.exists():
            continue
        name = remote.url.rsplit("/", 1)[-1]
        if not name.lower().endswith(ARCHIVES):
            download(remote, target, quiet)
            continue
        archive = target.parent / name
        download(remote, archive, quiet)
        unpack(archive, target.parent)
        if not target.exists():
            raise InputError(f"{str(archive)!r} does not contain {target.name!r}, which {facts.title} needs.")
        archive.unlink()


def download(remote: RemoteFile, target: Path, quiet: bool = False) -> None:
    """Download one file, resuming a partial download, and check its digest."""
    if target.exists():  # put there by hand, or not unpacked before an interruption
        _check_digest(remote, target)
        return
    if not remote.url.startswith(("https://", "http://")):
        raise InputError(f"{remote.url!r} is not an http address.")
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive(remote, part, quiet)
    except urllib.error.HTTPError as error:
        raise InputError(f"{remote.url}: {error.code} {error.reason}. {_by_hand(target)}") from error
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"{remote.url} cannot be reached: {reason}. Run the same command again to resume. {_by_hand(target)}"
        ) from error
    except OSError as error:
        raise InputError(f"{str(part)!r} cannot be written: {error.strerror or error}.") from error
    part.replace(target)
    _check_digest(remote, target)


def _receive(remote: RemoteFile, part: Path, quiet: bool) -> None:
    """Append the missing bytes to a partial download if a digest can tell that they belong together, or start over."""
    start = part.stat().st_size if part.is_file() and remote.md5 else 0
    headers = {"User-Agent": "captune", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        response = urllib.request.urlopen(urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        if error.headers.get("Content-Range", "").rpartition("/")[2] != str(start):
            part.unlink()  # longer than the file on the server
            _receive(remote, part, quiet)
        return  # interrupted after the last byte
    with response:
        is_resumed = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        _write(response, part, start if is_resumed else 0, quiet)


def _write(response: Any, part: Path, start: int, quiet: bool) -> None:  # noqa: ANN401 (a response of http.client)
    """Write the bytes of a response to the partial download, from `start` on."""
    length = response.headers.get("Content-Length")
    total = start + int(length) if length else None
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - start > free:
        raise InputError(f"{part.stem} needs {total - start:,} bytes, but {str(part.parent)!r} has {free:,} free.")
    with _bar(part.stem, start, total, quiet) as advance, part.open("ab" if start else "wb") as file:
        while chunk := response.read(CHUNK):
            file.write(chunk)
            advance(len(chunk))
    arrived = part.stat().st_size
    if total is not None and arrived != total:
        raise ConnectionError(f"connection closed after {arrived:,} of {total:,} bytes")


def _check_digest(remote: RemoteFile, target: Path) -> None:
    """Check the published digest, or the digest of the first download, which is recorded next to the file."""
    record = target.with_name(target.name + ".sha256")
    algorithm = "md5" if remote.md5 else "sha256"
    found = _digest_file(target, algorithm)
    expected = remote.md5 or (record.read_text().split()[0] if record.is_file() else "")
    if not expected:
        write_whole(record, f"{found}  {target.name}\n")
        console.print(f"{target.name} has no published digest; its SHA-256 is recorded in {record}.", markup=False)
    elif found != expected:
        wrong = target.with_name(target.name + ".wrong")
        target.replace(wrong)
        raise InputError(
            f"{remote.url}: the {algorithm.upper()} digest is {found}, expected {expected}. The download is damaged or "
            f"the file has changed; it is kept as {str(wrong)!r}. Run the same command to try again."
        )


def _digest_file(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _bar(what: str, start: int, total: int | None, quiet: bool) -> Iterator[Any]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=quiet) as bars:
        task = bars.add_task(what, total=total, completed=start)
        yield lambda n: bars.advance(task, n)


def _by_hand(target: Path) -> str:
    return f"You can also copy the file to {str(target)!r} yourself and run the command again."


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a folder, keeping existing files; an interruption leaves nothing half unpacked."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder, prefix=".unpacking-"))
    try:
        for name, content in _members(archive):
            target = aside / _inside(name, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file, CHUNK)
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
    """Yield name and content of every file; links and devices are rejected.

    Not `extractall(filter="data")`: early Python 3.10 lacks it, and links could escape it (CVE-2025-4517).
    """
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as files:
            for entry in files.infolist():
                if stat.S_ISLNK(entry.external_attr >> 16):
                    raise _unsafe(archive, entry.filename, "is a link")
                if not entry.is_dir() and PurePosixPath(entry.filename).parts[:1] != ("__MACOSX",):
                    yield entry.filename, files.open(entry)
        return
    with tarfile.open(archive, "r:*") as members:
        for member in members:
            if member.isdir():
                continue
            content = members.extractfile(member) if member.isreg() else None
            if content is None:
                raise _unsafe(archive, member.name, "is a link or a device")
            yield member.name, content


def _inside(name: str, archive: Path) -> Path:
    """Return the relative path of a member, which must not lead outside its folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    parts = [part for part in path.parts if part != "."]
    if path.is_absolute() or not parts or any(part == ".." or ":" in part or "\0" in part for part in parts):
        raise _unsafe(archive, name, "leads outside the folder")
    return Path(*parts)


def _unsafe(archive: Path, name: str, why: str) -> InputError:
    return InputError(f"{str(archive)!r} was not unpacked: {name!r} in it {why}. Do not use this archive.")
