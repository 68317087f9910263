"""Millions of paths in little memory: one buffer of names, from which paths are made on demand."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import index as as_int
from pathlib import Path, PurePath
from typing import overload

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Ints

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".avif", ".heic", ".heif"})
"""File name extensions of images."""


@dataclass(frozen=True, eq=False)
class Span:
    """The location of an image inside a tar shard."""

    shard: Path
    offset: int
    size: int


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive rows below one folder or inside one shard, whose offsets and sizes are `spans` `(rows, 2)`."""

    first: int
    base: Path
    spans: Ints | None = None


@dataclass(frozen=True, eq=False)
class NameStore:
    """All names of a collection in one buffer; row i is `names[ends[i]:ends[i + 1]]`."""

    names: NDArray[np.uint8]
    ends: Ints
    segments: tuple[Segment, ...]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def name(self, row: int) -> str:
        """Return the name in a row, which is absolute or relative to the base of its segment."""
        return self.names[self.ends[row] : self.ends[row + 1]].tobytes().decode("utf-8", "surrogateescape")

    def segment(self, row: int) -> Segment:
        """Return the segment that contains a row."""
        if len(self.segments) == 1:
            return self.segments[0]
        return self.segments[bisect_right(self.segments, row, key=lambda segment: segment.first) - 1]


class NameStoreBuilder:
    """Collects names one by one."""

    def __init__(self, base: Path | None = None) -> None:
        self._names, self._ends = bytearray(), array("q", [0])
        self._segments = [] if base is None else [Segment(0, base)]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def begin(self, base: Path, spans: Ints | None = None) -> None:
        """Start a segment: the next rows are below this folder, or in this shard at these offsets and sizes."""
        if not self._segments or self._segments[-1].base != base or spans is not None:
            self._segments.append(Segment(len(self), base, spans))

    def add(self, name: str) -> None:
        """Add one row."""
        self._names += tidy(name).encode("utf-8", "surrogateescape")
        self._ends.append(len(self._names))

    def add_all(self, names: NDArray[np.uint8], ends: Ints) -> None:
        """Add all rows of a shard's index."""
        self._ends.extend((ends[1:] + len(self._names)).tolist())
        self._names += names.tobytes()

    def finish(self) -> NameStore:
        """Return the store; the builder cannot be used afterwards."""
        names = np.frombuffer(self._names, dtype=np.uint8) if self._names else np.empty(0, dtype=np.uint8)
        return NameStore(names, np.frombuffer(self._ends, dtype=np.int64), tuple(self._segments))


class ImagePaths(Sequence[Path]):
    """A sequence of paths; subsets share the names and store only row numbers."""

    def __init__(self, store: NameStore, rows: Ints | None = None) -> None:
        self._store, self._rows = store, rows

    @classmethod
    def below(cls, base: Path, names: Iterable[str]) -> ImagePaths:
        """Return paths from their names, each absolute or relative to a folder."""
        builder = NameStoreBuilder(base)
        for name in names:
            builder.add(name)
        return cls(builder.finish())

    @classmethod
    def of(cls, paths: Sequence[Path], root: Path) -> ImagePaths:
        """Return any paths; if all are below the root, only their relative names are stored."""
        texts, prefix = [str(path) for path in paths], os.path.join(str(root), "")  # noqa: PTH118 (ends with a slash)
        if root != Path() and all(text.startswith(prefix) for text in texts):
            return cls.below(root, (text[len(prefix) :] for text in texts))
        return cls.below(Path(), texts)

    def __len__(self) -> int:
        return len(self._store) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, position: int) -> Path: ...

    @overload
    def __getitem__(self, position: slice) -> ImagePaths: ...

    def __getitem__(self, position: int | slice) -> Path | ImagePaths:
        if isinstance(position, slice):
            return self.subset(np.arange(len(self), dtype=np.int64)[position])
        base, name = self.parts(position)
        return base / name

    def __iter__(self) -> Iterator[Path]:
        return (self[position] for position in range(len(self)))

    def __add__(self, other: ImagePaths) -> ImagePaths:
        """Return the paths of both, one after the other."""
        if self._store is other._store:
            return ImagePaths(self._store, np.concatenate([self.rows(), other.rows()]))
        if len(other) == 0 or len(self) == 0:
            return self if len(other) == 0 else other
        return ImagePaths(*_joined(self, other))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ImagePaths):
            return NotImplemented
        if self is other:
            return True
        if self._store is other._store:
            return np.array_equal(self.rows(), other.rows())
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((len(self), self[0], self[len(self) - 1]) if len(self) else 0)

    def subset(self, positions: Ints | Sequence[int]) -> ImagePaths:
        """Return the paths at these positions, in this order."""
        chosen = np.asarray(positions, dtype=np.int64)
        return ImagePaths(self._store, chosen if self._rows is None else self._rows[chosen])

    def parts(self, position: int) -> tuple[Path, str]:
        """Return the folder or shard that a path is in, and its name there."""
        row = self.row(position)
        return self._store.segment(row).base, self._store.name(row)

    def span(self, position: int) -> Span | None:
        """Return where an image is in its shard, or None for a plain file."""
        row = self.row(position)
        segment = self._store.segment(row)
        if segment.spans is None:
            return None
        offset, size = segment.spans[row - segment.first].tolist()
        return Span(segment.base, offset, size)

    def row(self, position: int) -> int:
        """Return the row of the store that a position refers to."""
        place, n_paths = as_int(position), len(self)
        if not -n_paths <= place < n_paths:
            raise IndexError(f"position {place} is out of range for {n_paths} images")
        place %= n_paths
        return place if self._rows is None else int(self._rows[place])

    def rows(self) -> Ints:
        """Return the rows of the store that all positions refer to."""
        return np.arange(len(self._store), dtype=np.int64) if self._rows is None else self._rows


def tidy(name: str) -> str:
    """Return a path as `str(Path(...))` would, but faster."""
    is_tidy = os.sep == "/" and "//" not in name and "/." not in name and name[:1] != "." and name[-1:] != "/"
    return name if is_tidy else str(PurePath(name))


def _joined(first: ImagePaths, second: ImagePaths) -> tuple[NameStore, Ints]:
    """Return one store with the names of both, and the rows of both in it."""
    stores, begins = (first._store, second._store), (0, len(first._store))
    names = np.concatenate([store.names for store in stores])
    ends = np.concatenate([stores[0].ends, stores[1].ends[1:] + len(stores[0].names)])
    segments = tuple(
        Segment(segment.first + begin, segment.base, segment.spans)
        for store, begin in zip(stores, begins, strict=True)
        for segment in store.segments
    )
    rows = np.concatenate([first.rows(), second.rows() + begins[1]])
    return NameStore(names, ends, segments), rows
