"""Downloads that go on where they stopped, and count only when their digest is right."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from captune.benchmark.datasets.base import DatasetFacts, RemoteFile
from captune.benchmark.unpacking import is_archive, unpack
from captune.core.errors import InputError
from captune.core.files import write_whole
from captune.core.runtime import console

TIMEOUT = 60.0
"""Seconds without a byte after which a connection is given up."""
CHUNK = 1 << 20


def fetch(facts: DatasetFacts, root: Path, quiet: bool = False) -> None:
    """Download and unpack what a dataset lacks below a root."""
    if not facts.urls:
        raise InputError(
            f"{facts.title} has no public address to download from; put its files below {str(root)!r} by hand "
            f"(source: {facts.source})."
        )
    for remote in facts.urls:
        given = root / remote.gives
        if given.exists():
            continue
        name = remote.url.rsplit("/", 1)[-1]
        if not is_archive(name):
            download(remote, given, quiet)
            continue
        archive = given.parent / name
        download(remote, archive, quiet)
        unpack(archive, given.parent)
        if not given.exists():
            raise InputError(f"{str(archive)!r} does not hold {given.name!r}, which {facts.title} is read from.")
        archive.unlink()


def download(remote: RemoteFile, target: Path, quiet: bool = False) -> None:
    """Download one file; a part that is there already is continued, and the digest is checked at the end."""
    if target.exists():  # brought by hand, or left by a stop before it was unpacked
        _check_digest(remote, target)
        return
    if not remote.url.startswith(("https://", "http://")):
        raise InputError(f"{remote.url!r} is no http address.")
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive(remote, part, quiet)
    except urllib.error.HTTPError as error:
        raise InputError(f"{remote.url} answers {error.code} {error.reason}. {_by_hand(target)}") from error
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"{remote.url} cannot be reached: {reason}. What has arrived is kept; run the same command when there is "
            f"a network. {_by_hand(target)}"
        ) from error
    except OSError as error:
        raise InputError(f"{str(part)!r} cannot be written: {error.strerror or error}.") from error
    part.replace(target)
    _tag_path(part).unlink(missing_ok=True)
    _check_digest(remote, target)


def _receive(remote: RemoteFile, part: Path, quiet: bool) -> None:
    """Append to the part what it lacks, or begin anew where the server has another file by now."""
    tag = _tag_path(part).read_text() if _tag_path(part).is_file() else ""
    # Without a tag only the digest can tell whether old and new bytes belong together.
    start = part.stat().st_size if part.is_file() and (tag or remote.md5) else 0
    headers = {"User-Agent": "captune"}
    if start:
        headers |= {"Range": f"bytes={start}-", **({"If-Range": tag} if tag else {})}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        if error.headers.get("Content-Range", "").rpartition("/")[2] != str(start):
            part.unlink()  # longer than the file on the server
            _receive(remote, part, quiet)
        return  # the stop came after the last byte
    with answer:
        continued = answer.status == http.HTTPStatus.PARTIAL_CONTENT and _starts_at(answer, start)
        _write(answer, part, start if continued else 0, quiet)


def _write(answer: Any, part: Path, start: int, quiet: bool) -> None:  # noqa: ANN401 (http.client's answer)
    """Write the bytes of an answer to the part, from `start` on."""
    length = answer.headers.get("Content-Length")
    total = start + int(length) if length else None
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - start > free:
        raise InputError(f"{part.stem} needs {total - start:,} bytes, but {str(part.parent)!r} has {free:,} free.")
    write_whole(_tag_path(part), _tag(answer))
    with _bar(part.stem, start, total, quiet) as advance, part.open("ab" if start else "wb") as file:
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            advance(len(chunk))
    arrived = part.stat().st_size
    if total is not None and arrived != total:
        raise ConnectionError(f"the connection ended after {arrived:,} of {total:,} bytes")


def _starts_at(answer: Any, start: int) -> bool:  # noqa: ANN401 (http.client's answer)
    return bool(answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"))


def _tag(answer: Any) -> str:  # noqa: ANN401
    """Return what names this version of the file on the server; a weak ETag does not say that bytes are the same."""
    tag = answer.headers.get("ETag") or ""
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified") or ""


def _check_digest(remote: RemoteFile, target: Path) -> None:
    """Compare with the known digest, or with that of the first download, which is recorded beside the file."""
    record = target.with_name(target.name + ".sha256")
    algorithm = "md5" if remote.md5 else "sha256"
    found = _digest(target, algorithm)
    expected = remote.md5 or (record.read_text().split()[0] if record.is_file() else "")
    if not expected:
        write_whole(record, f"{found}  {target.name}\n")
        console.print(f"No digest of {target.name} is published; its SHA-256 is recorded in {record}.", markup=False)
    elif found != expected:
        wrong = target.with_name(target.name + ".wrong")
        target.replace(wrong)
        raise InputError(
            f"{remote.url}: the {algorithm.upper()} digest is {found}, expected {expected}. The file was damaged on "
            f"its way or replaced at its source; it is kept as {str(wrong)!r}. Run the same command to try again."
        )


def _digest(path: Path, algorithm: str) -> str:
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


def _tag_path(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def _by_hand(target: Path) -> str:
    return f"You can also bring the file from another machine: put it at {str(target)!r} and run the command again."
