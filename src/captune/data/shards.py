"""Images inside tar shards, read in place: headers are indexed once and the index is cached."""

from __future__ import annotations

import glob
import os
import re
import tarfile
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from captune.core.arrays import Ints
from captune.core.errors import CaptuneError, InputError, raise_all
from captune.core.files import cache_folder, digest, is_file, write_whole
from captune.data.paths import SUFFIXES, Span
from captune.data.tables import Problems, first_few

VERSION = 1
"""Part of the cache key: increase it when the index of a shard changes."""
DIGEST = 32
"""Length of the digest before the content of a cached index."""
MOST_HEADER_BYTES = 1 << 20
MOST_SHARDS = 1_000_000
MOST_SHOWN = 3
BLOCK = 512
_RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The images of a shard in order: names as in a `NameStore`, and offsets and sizes `(images, 2)`."""

    names: NDArray[np.uint8]
    ends: Ints
    spans: Ints


def is_shard(path: str | Path) -> bool:
    """Return whether a file name is that of a tar shard; compressed shards are an error."""
    name = str(path)[-8:].lower()
    if name.endswith(_COMPRESSED):
        raise InputError(
            f"The shard {str(path)!r} is compressed, but images are read in place. Decompress it to a .tar file; since "
            "images are compressed already, it will hardly grow."
        )
    return name.endswith(".tar")


def is_pattern(source: str) -> bool:
    """Return whether a source is a pattern of shards: `*`, `?`, `[...]` or a range `{000..009}`, ending in .tar."""
    return source.lower().endswith(".tar") and (glob.has_magic(source) or _RANGE.search(source) is not None)


def expand(pattern: str) -> list[Path]:
    """Return the shards that match a pattern: ranges in their order, wildcards sorted."""
    found: list[Path] = []
    missing: list[str] = []
    for name in _ranges(pattern):
        matches = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else [name]  # noqa: PTH207
        found += [Path(match) for match in matches if is_file(match)]
        if not any(is_file(match) for match in matches):
            missing.append(f"no file {name!r}")
    raise_all(first_few(missing, MOST_SHOWN), f"Some of the shards {pattern!r} do not exist")
    return found


def index_shard(shard: Path) -> ShardIndex:
    """Return the images of a shard; its headers are read only if it is new or has changed."""
    try:
        facts = shard.stat()
    except OSError as error:
        raise InputError(f"Cannot read the shard {str(shard)!r}: {error.strerror}.") from error
    identity = f"{VERSION}\n{shard.absolute()}\n{facts.st_size}\n{facts.st_mtime_ns}"
    key = digest(identity.encode("utf-8", "surrogateescape"))
    cached = cache_folder() / "shards" / f"{key}.index"
    index = _read_index(cached)
    if index is None:
        index = _read_headers(shard)
        content = save_tensors({"names": index.names, "ends": index.ends, "spans": index.spans})
        with suppress(CaptuneError):  # without a cached index, the headers are read again next time
            write_whole(cached, digest(content).encode() + content)
    return index


def locate(path: Path) -> Span | None:
    """Return the location of `shard.tar/member`, or None if there is no such shard or member."""
    for shard in path.parents:
        if shard.suffix.lower() == ".tar" and is_file(shard):
            facts = shard.stat()
            rows, spans = _rows(shard, facts.st_size, facts.st_mtime_ns)
            row = rows.get(path.relative_to(shard).as_posix())
            return None if row is None else Span(shard, *spans[row].tolist())
    return None


@lru_cache(maxsize=8)
def _rows(shard: Path, size: int, changed: int) -> tuple[dict[str, int], Ints]:
    """Return the row of every name in a shard; size and modification time are there for the cache only."""
    index = index_shard(shard)
    content = index.names.tobytes()
    spans = enumerate(pairwise(index.ends.tolist()))
    return {content[a:b].decode("utf-8", "surrogateescape"): row for row, (a, b) in spans}, index.spans


class _Header(tarfile.TarInfo):
    """A tar header that cannot request more memory than a name needs."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """Read a header and reject sizes that no tar program writes."""
        header = super().frombuf(buf, encoding, errors)
        is_extension = header.type in (b"x", b"g", b"X", b"L", b"K")
        if header.size < 0 or (is_extension and header.size > MOST_HEADER_BYTES):
            raise tarfile.ReadError(f"a header requests {header.size:,} bytes")
        return header


def _read_headers(shard: Path) -> ShardIndex:
    names, ends, spans = bytearray(), array("q", [0]), array("q")
    seen: set[str] = set()
    problems = Problems(MOST_SHOWN)
    try:
        with tarfile.open(shard, "r:", tarinfo=_Header) as tar:
            for member in _members(tar, shard):
                name = _image_name(member)
                if name is None:
                    continue
                problem = _problem(member, name)
                if problem or name in seen:
                    problems.add(f"{member.name!r} {problem or 'occurs twice'}")
                    continue
                seen.add(name)
                names += name.encode("utf-8", "surrogateescape")
                ends.append(len(names))
                spans.extend((member.offset_data, member.size))
    except (OSError, EOFError, ValueError, OverflowError, tarfile.TarError) as error:
        raise InputError(
            f"The shard {str(shard)!r} is damaged or not an uncompressed tar file ({error}). Copy or create it again."
        ) from error
    raise_all(problems.listed(), f"Cannot use the shard {str(shard)!r}")
    return ShardIndex(
        np.frombuffer(bytes(names), dtype=np.uint8),
        np.frombuffer(ends, dtype=np.int64),
        np.frombuffer(spans, dtype=np.int64).reshape(-1, 2) if spans else np.empty((0, 2), dtype=np.int64),
    )


def _members(tar: tarfile.TarFile, shard: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members and check the end-of-archive block, which a truncated shard lacks."""
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined] # the library would keep them all
        yield member
    with shard.open("rb") as file:
        file.seek(tar.offset)
        if file.read(BLOCK) != bytes(BLOCK):
            raise tarfile.ReadError(f"no header or end of archive at byte {tar.offset:,}")


def _image_name(member: tarfile.TarInfo) -> str | None:
    """Return the name of a member that is an image; hidden files are ignored as in folders."""
    path = PurePosixPath(member.name)
    hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return None if member.isdir() or hidden or path.suffix.lower() not in SUFFIXES else str(path)


def _problem(member: tarfile.TarInfo, name: str) -> str:
    """Return what is wrong with the entry of an image, or an empty string."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or (os.sep == "\\" and set(name) & set("\\:")):
        return "points outside the shard"
    if member.issym() or member.islnk():
        return f"is a link to {member.linkname!r}, and links are not followed; create the shard with tar --dereference"
    return "" if member.isreg() and not member.issparse() else "is not a regular file"


def _read_index(path: Path) -> ShardIndex | None:
    try:
        content = path.read_bytes()
        if digest(content[DIGEST:]).encode() != content[:DIGEST]:
            return None
        tensors = load_tensors(content[DIGEST:])
        return ShardIndex(tensors["names"], tensors["ends"], tensors["spans"])
    except Exception:  # whatever is wrong with the cached index, the shard can be indexed again
        return None


def _ranges(pattern: str) -> list[str]:
    """Expand the ranges `{000..009}` of a pattern, keeping leading zeros."""
    names = [pattern]
    while (found := _RANGE.search(names[0])) is not None:
        first, last = found.groups()
        numbers = range(int(first), int(last) + 1)
        if not numbers or len(names) * (int(last) + 1 - int(first)) > MOST_SHARDS:
            raise InputError(
                f"The range {found.group()!r} in {pattern!r} is empty or has more than {MOST_SHARDS:,} shards."
            )
        names = [_RANGE.sub(f"{n:0{len(first)}d}", name, count=1) for name in names for n in numbers]
    return names
