"""Images inside tar shards: headers are read once and remembered, images opened by their place, nothing is unpacked."""

from __future__ import annotations

import glob
import hashlib
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
from captune.core.files import cache_folder, is_file, write_whole
from captune.data.paths import SUFFIXES, Span

VERSION = 1
"""Raised when the same shard would be indexed in another way."""
MOST_HEADER_BYTES = 1 << 20
MOST_SHARDS = 1_000_000
MOST_SHOWN = 3
BLOCK = 512
_RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The images of a shard in its order: names as in a `NameStore`, and offset and size of each, `(images, 2)`."""

    names: NDArray[np.uint8]
    ends: Ints
    spans: Ints


def is_shard(path: str | Path) -> bool:
    """Return whether a name is that of a tar shard; a compressed one is refused with what to do."""
    name = str(path)[-8:].lower()
    if name.endswith(_COMPRESSED):
        raise InputError(
            f"{str(path)!r} is compressed, and images are opened at their place in a shard. Decompress it to a .tar "
            "first; images are compressed already, so it hardly grows."
        )
    return name.endswith(".tar")


def is_pattern(source: str) -> bool:
    """Return whether a source stands for several shards: `*`, `?`, `[...]` or a range `{000..009}`, ending in .tar."""
    return source.lower().endswith(".tar") and (glob.has_magic(source) or _RANGE.search(source) is not None)


def expand(pattern: str) -> list[Path]:
    """Return the shards that a pattern stands for, ranges in their order and wildcards sorted."""
    found: list[Path] = []
    missing: list[str] = []
    for name in _ranges(pattern):
        matches = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else [name]  # noqa: PTH207
        found += [Path(match) for match in matches if is_file(match)]
        if not any(is_file(match) for match in matches):
            missing.append(f"no file {name!r}")
    if missing:
        more = [f"and {len(missing) - MOST_SHOWN} more"] if len(missing) > MOST_SHOWN else []
        raise_all([*missing[:MOST_SHOWN], *more], f"The shards {pattern!r} are not all there")
    return found


def index_shard(shard: Path) -> ShardIndex:
    """Return the images of a shard; its headers are read only if it is new or has changed since the last time."""
    try:
        facts = shard.stat()
    except OSError as error:
        raise InputError(f"The shard {str(shard)!r} cannot be read: {error.strerror}.") from error
    described = f"{VERSION}\n{shard.absolute()}\n{facts.st_size}\n{facts.st_mtime_ns}"
    key = hashlib.blake2b(described.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    remembered = cache_folder() / "shards" / f"{key}.index"
    found = _recall(remembered)
    if found is None:
        found = _read_headers(shard)
        content = save_tensors({"names": found.names, "ends": found.ends, "spans": found.spans})
        with suppress(CaptuneError):  # without it, the headers are read again next time
            write_whole(remembered, hashlib.blake2b(content, digest_size=16).digest() + content)
    return found


def locate(path: Path) -> Span | None:
    """Return the place of `shard.tar/member` by its name, or None where there is no such shard or member."""
    for shard in path.parents:
        if shard.suffix.lower() == ".tar" and is_file(shard):
            facts = shard.stat()
            places, spans = _places(shard, facts.st_size, facts.st_mtime_ns)
            row = places.get(path.relative_to(shard).as_posix())
            return None if row is None else Span(shard, *spans[row].tolist())
    return None


@lru_cache(maxsize=8)
def _places(shard: Path, size: int, changed: int) -> tuple[dict[str, int], Ints]:
    """Return the row of every name in a shard; size and time of change only tell versions of it apart."""
    index = index_shard(shard)
    content = index.names.tobytes()
    ends = index.ends.tolist()
    names = [content[a:b].decode("utf-8", "surrogateescape") for a, b in pairwise(ends)]
    return {name: row for row, name in enumerate(names)}, index.spans


class _Header(tarfile.TarInfo):
    """A tar header that cannot ask for more memory than a name needs."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """Read a header, or refuse one that no tar program writes."""
        header = super().frombuf(buf, encoding, errors)
        is_extension = header.type in (b"x", b"g", b"X", b"L", b"K")
        if header.size < 0 or (is_extension and header.size > MOST_HEADER_BYTES):
            raise tarfile.ReadError(f"a header asks for {header.size:,} bytes")
        return header


def _read_headers(shard: Path) -> ShardIndex:
    names, ends, spans = bytearray(), array("q", [0]), array("q")
    seen: set[str] = set()
    problems: list[str] = []
    try:
        with tarfile.open(shard, "r:", tarinfo=_Header) as tar:
            for member in _members(tar, shard):
                name = _image_name(member)
                if name is None:
                    continue
                problem = _problem(member, name)
                if problem or name in seen:
                    problems.append(f"{member.name!r} {problem or 'is there twice'}")
                    continue
                seen.add(name)
                names += name.encode("utf-8", "surrogateescape")
                ends.append(len(names))
                spans.extend((member.offset_data, member.size))
    except (OSError, EOFError, ValueError, OverflowError, tarfile.TarError) as error:
        raise InputError(
            f"The shard {str(shard)!r} is damaged or no uncompressed tar file ({error}). Copy or make it again."
        ) from error
    if problems:
        more = [f"and {len(problems) - MOST_SHOWN} more"] if len(problems) > MOST_SHOWN else []
        raise_all([*problems[:MOST_SHOWN], *more], f"The shard {str(shard)!r} cannot be used")
    return ShardIndex(
        np.frombuffer(bytes(names), dtype=np.uint8),
        np.frombuffer(ends, dtype=np.int64),
        np.frombuffer(spans, dtype=np.int64).reshape(-1, 2) if spans else np.empty((0, 2), dtype=np.int64),
    )


def _members(tar: tarfile.TarFile, shard: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members; a shard that does not end as a tar file does was cut off."""
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined] # the library would keep them all
        yield member
    with shard.open("rb") as file:
        file.seek(tar.offset)
        if file.read(BLOCK) != bytes(BLOCK):
            raise tarfile.ReadError(f"it was cut off after {tar.offset:,} bytes, or goes on with something else")


def _image_name(member: tarfile.TarInfo) -> str | None:
    """Return the name of a member that is an image, as tables show it; hidden files are left out as in folders."""
    path = PurePosixPath(member.name)
    hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return None if member.isdir() or hidden or path.suffix.lower() not in SUFFIXES else str(path)


def _problem(member: tarfile.TarInfo, name: str) -> str:
    """Return what is wrong with an image's entry, or nothing."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or (os.sep == "\\" and set(name) & set("\\:")):
        return "leads out of the shard"
    if member.issym() or member.islnk():
        return f"is a link to {member.linkname!r}; links are not followed: make the shard with --dereference"
    return "" if member.isreg() and not member.issparse() else "is no regular file"


def _recall(path: Path) -> ShardIndex | None:
    try:
        content = path.read_bytes()
        if hashlib.blake2b(content[16:], digest_size=16).digest() != content[:16]:
            return None
        tensors = load_tensors(content[16:])
        return ShardIndex(tensors["names"], tensors["ends"], tensors["spans"])
    except Exception:  # whatever is wrong with it, the shard itself is still there
        return None


def _ranges(pattern: str) -> list[str]:
    """Return a pattern once for every number of its ranges `{000..009}`, with leading zeros as given."""
    names = [pattern]
    while (found := _RANGE.search(names[0])) is not None:
        first, last = found.groups()
        numbers = range(int(first), int(last) + 1)
        if not numbers or len(names) * (int(last) + 1 - int(first)) > MOST_SHARDS:
            raise InputError(f"The range {found.group()!r} in {pattern!r} is empty or longer than {MOST_SHARDS:,}.")
        names = [_RANGE.sub(f"{n:0{len(first)}d}", name, count=1) for name in names for n in numbers]
    return names
