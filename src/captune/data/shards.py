"""Images inside tar shards, read in place."""

from __future__ import annotations

import glob
import os
import re
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from captune.core.errors import InputError, raise_all
from captune.core.files import is_file
from captune.data.tables import first_few

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".avif", ".heic", ".heif"})
"""File name extensions of images."""
MOST_HEADER_BYTES = 1 << 20
MOST_SHARDS = 1_000_000
MOST_SHOWN = 3
BLOCK = 512
_RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")


class Span(NamedTuple):
    """The location of an image inside a tar shard."""

    shard: Path
    offset: int
    size: int


class Member(NamedTuple):
    """An image of a shard: its name, where its content is, and where its header begins."""

    name: str
    offset: int
    size: int
    header: int


def is_shard(path: str | Path) -> bool:
    """Return whether a file name is that of a tar shard; compressed shards are an error."""
    name = str(path)[-8:].lower()
    if name.endswith(_COMPRESSED):
        advice = "Decompress it to a .tar file, which will hardly be larger"
        raise InputError(f"The shard {str(path)!r} is compressed, but images are read in place. {advice}.")
    return name.endswith(".tar")


def expand(pattern: str) -> list[str]:
    """Return the shards that match a pattern that ends in .tar: ranges in their order, wildcards sorted.

    A pattern has `*`, `?`, `[...]` or a range `{000..009}`; another source matches nothing.
    """
    if not pattern.lower().endswith(".tar") or not (glob.has_magic(pattern) or _RANGE.search(pattern)):
        return []
    names = [pattern]
    while (match := _RANGE.search(names[0])) is not None:  # leading zeros are kept
        numbers = range(int(match[1]), int(match[2]) + 1)
        if not numbers or len(names) * (numbers.stop - numbers.start) > MOST_SHARDS:
            raise InputError(f"The range {match[0]!r} in {pattern!r} is empty or has more than {MOST_SHARDS:,} shards.")
        names = [_RANGE.sub(f"{n:0{len(match[1])}d}", name, count=1) for name in names for n in numbers]
    found = {name: sorted(filter(is_file, glob.glob(name, recursive=True))) for name in names}  # noqa: PTH207
    missing = (f"no file {name!r}" for name, matches in found.items() if not matches)
    raise_all(first_few(missing, MOST_SHOWN), f"Some of the shards {pattern!r} do not exist")
    return [shard for matches in found.values() for shard in matches]


def locate(path: Path) -> Span | None:
    """Return the location of `shard.tar/member`, or None if there is no such shard or member."""
    for shard in path.parents:
        if shard.suffix.lower() == ".tar" and is_file(shard):
            facts = shard.stat()
            member = _members_by_name(shard, facts.st_size, facts.st_mtime_ns).get(path.relative_to(shard).as_posix())
            return None if member is None else Span(shard, member.offset, member.size)
    return None


@lru_cache(maxsize=8)
def _members_by_name(shard: Path, *facts: int) -> dict[str, Member]:
    """Return the images of a shard; with its size and modification time, the cache notices changes."""
    return {member.name: member for member in index_shard(shard)}


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


def index_shard(shard: Path) -> list[Member]:
    """Return the images of a shard in order, after reading all its headers."""
    found = dict[str, Member]()
    problems = list[str]()
    for member, problem in scan_shard(shard):
        if problem or member.name in found:
            problems.append(f"{member.name!r} {problem or 'occurs twice'}")
        found[member.name] = member
    raise_all(first_few(problems, MOST_SHOWN), f"Cannot use the shard {str(shard)!r}")
    return list(found.values())


def scan_shard(shard: Path, start: int = 0) -> Iterator[tuple[Member, str]]:
    """Yield the images of a shard, from the header at an offset, and what is wrong with each entry."""
    try:
        with shard.open("rb") as file:
            file.seek(start)
            with tarfile.open(fileobj=file, mode="r:", tarinfo=_Header) as tar:
                offset = -1
                while (entry := tar.next()) is not None:
                    if entry.size < 0 or tar.offset <= offset:  # extended headers may do that: an endless loop
                        raise tarfile.ReadError(f"the member {entry.name!r} has {entry.size:,} bytes")
                    offset = tar.offset
                    tar.members = []  # type: ignore[attr-defined] # the library would keep them all
                    path = PurePosixPath(entry.name)
                    is_hidden = any(part.startswith(".") and part != ".." for part in path.parts)
                    if not entry.isdir() and not is_hidden and path.suffix.lower() in SUFFIXES:
                        yield Member(str(path), entry.offset_data, entry.size, entry.offset), _problem(entry, path)
                file.seek(tar.offset)
                if file.read(BLOCK) != bytes(BLOCK):  # a truncated shard has no end-of-archive block
                    raise tarfile.ReadError(f"no header or end of archive at byte {tar.offset:,}")
    except (OSError, EOFError, ValueError, OverflowError, tarfile.TarError) as error:
        raise InputError(f"The shard {str(shard)!r} is damaged ({error}). Copy or create it again.") from error


def _problem(member: tarfile.TarInfo, path: PurePosixPath) -> str:
    """Return what is wrong with the entry of an image, or an empty string."""
    name = str(path)
    if path.is_absolute() or ".." in path.parts or "\0" in name or (os.sep == "\\" and set(name) & set("\\:")):
        return "points outside the shard"
    if member.issym() or member.islnk():
        return f"is a link to {member.linkname!r}, and links are not followed; create the shard with tar --dereference"
    return "" if member.isreg() and not member.issparse() else "is not a regular file"
