"""Image collections from folders, manifests, lists and tar shards."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from captune.core.arrays import Ints
from captune.core.errors import InputError, raise_all
from captune.core.files import is_file, is_folder
from captune.data.decoding import EncodedImage, ImageData, read_bytes
from captune.data.folders import TAR, Unused, walk
from captune.data.keys import KeyList, KeySet
from captune.data.paths import ImagePaths, NameStoreBuilder
from captune.data.shards import expand, index_shard, is_pattern, is_shard
from captune.data.tables import Problems, first_few, is_table, read_columns, read_lines

PATH_COLUMNS = ("path", "image", "image_path", "file", "filename", "filepath", "file_name")


@dataclass(frozen=True, init=False)
class ImageCollection:
    """An ordered collection of images; an image is identified by its position.

    These are files; `data/memory.py` and `data/precomputed.py` have the collections that are not.

    Attributes:
        paths: Where each image is; `shard.tar/member` inside a tar shard. Any sequence of paths is accepted.
        root: The folder that names are relative to.
        unused: A line about everything else that was found there and is not used; empty if there is nothing.
    """

    paths: ImagePaths
    root: Path
    unused: str = field(default="", compare=False)
    kind: ClassVar[str] = "files"

    def __init__(self, paths: Sequence[Path], root: Path, unused: str = "") -> None:
        compact = paths if isinstance(paths, ImagePaths) else ImagePaths.of(paths, root)
        object.__setattr__(self, "unused", unused)
        object.__setattr__(self, "paths", compact)
        object.__setattr__(self, "root", root)

    def __len__(self) -> int:
        return len(self.paths)

    def __add__(self, other: ImageCollection) -> ImageCollection:
        """Return both collections, one after the other, with names relative to the first root."""
        if len(self) == 0 or len(other) == 0:
            return self if len(other) == 0 else other
        if not self._shares_source(other):
            raise InputError("Images in memory can only be joined with images of the same source.")
        return self._with(self.paths + other.paths)

    def subset(self, index: Ints | Sequence[int]) -> Self:
        """Return the images at these positions, in this order."""
        return self._with(self.paths.subset(index))

    @property
    def place(self) -> str:
        """Return where the images are, for messages."""
        return repr(str(self.root))

    def _with(self, paths: ImagePaths) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, paths=paths)
        return other

    def _shares_source(self, other: ImageCollection) -> bool:
        return type(other) is ImageCollection

    def read(self, position: int) -> ImageData:
        """Read one image without decoding it, or raise an UnreadableImageError."""
        return EncodedImage(read_bytes(self.paths[position], self.paths.span(position)))

    def name(self, position: int) -> str:
        """Return the image's path as tables show it: relative to the root, with forward slashes."""
        base, name = self.paths.parts(position)
        prefix = _prefix(base, self.root)
        if prefix is None or os.sep != "/" or name.startswith("/"):
            path = base / name
            shown = (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()
        else:
            shown = prefix + name
        # File names may contain bytes that are not UTF-8; tables show them escaped.
        return shown if shown.isascii() else os.fsencode(shown).decode("utf-8", "backslashreplace")

    @property
    def fingerprint(self) -> str:
        """Return a digest of all names and file sizes, which records the data that a run used."""
        digest = hashlib.blake2b(digest_size=16)
        for position in range(len(self)):
            digest.update(f"{self.name(position)}\0{self._size(position)}\n".encode())
        return digest.hexdigest()

    def _size(self, position: int) -> int:
        span = self.paths.span(position)
        if span is not None:
            return span.size
        try:
            found = self.paths[position].stat()
        except (OSError, ValueError):
            return -1
        return found.st_size if stat.S_ISREG(found.st_mode) else -1


class ItemCollection(ImageCollection):
    """Images that are items of an object in memory, such as a list, a dataset or a matrix of embeddings."""

    items: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ItemCollection) and self._shares_source(other) and self.paths == other.paths

    def __hash__(self) -> int:
        return hash((id(self.items), self.paths))

    def _shares_source(self, other: ImageCollection) -> bool:
        return isinstance(other, ItemCollection) and self.items is other.items


def no_usable_image(images: ImageCollection, skipped: Mapping[int, str]) -> str:
    """Return the error message for a collection without a single readable image."""
    if len(images) == 0:
        expected = f"No images in {images.place}: expected JPEG, PNG, WebP, TIFF, BMP, GIF, AVIF or HEIC files."
        return f"{expected} {images.unused}".rstrip()
    reasons = "".join(f"\n  - {images.name(position)}: {why}" for position, why in list(skipped.items())[:5])
    return f"None of the {len(images)} images in {images.place} can be read:{reasons}"


def find_images(source: str | Path, root: str | Path | None = None) -> ImageCollection:
    """Collect images from a folder (recursively), tar shards, a CSV/Parquet manifest or a text file of paths.

    Shards are given as a .tar file, a pattern such as `folder/*.tar` or `shard-{000..009}.tar`, a folder that contains
    .tar files and no images, or as lines of a list. Manifest paths are relative to the manifest's folder. With `root`,
    paths outside that folder are an error.
    """
    path, guard = Path(source), _RootGuard(root)
    if is_folder(path):
        return _from_folder(path, guard)
    if is_file(path) and not is_shard(path):
        entries = (row[0] for row in read_columns(path, [PATH_COLUMNS])) if is_table(path) else read_lines(path)
        return _from_entries(entries, path.parent, f"Cannot use the manifest {str(path)!r}", guard)
    if is_file(path) or is_pattern(str(source)):
        shards = [path] if is_file(path) else expand(str(source))
        return _from_shards(shards, Path(os.path.commonpath([shard.parent for shard in shards])), guard)
    raise InputError(
        f"No images at {str(source)!r}: it is neither a folder nor a file. Expected a folder of images, .tar shards, "
        "a CSV or Parquet manifest with a 'path' column, or a text file with one path per line."
    )


def from_paths(paths: Iterable[str | os.PathLike[str]], root: str | Path | None = None) -> ImageCollection:
    """Return the images at these paths, which are relative to the working directory."""
    return _from_entries((os.fspath(path) for path in paths), Path(), "Cannot use these paths", _RootGuard(root))


def _from_entries(entries: Iterable[str], base: Path, heading: str, guard: _RootGuard) -> ImageCollection:
    prefix = os.path.join(base, "")  # noqa: PTH118 (ends with a slash)
    invalid, keys, shard_rows, folder_of = Problems(), KeyList(), [], _real_folder()
    builder = NameStoreBuilder(base)
    for number, line in enumerate(entries, start=1):
        entry = line.strip()
        if not entry or "\0" in entry:
            invalid.add(f"row {number} has " + ("a NUL character in its path" if entry else "an empty path"))
            continue
        guard.check(base, entry)
        keys.add(folder_of(os.path.normpath(entry if os.path.isabs(entry) else prefix + entry)))  # noqa: PTH117
        if is_shard(entry):
            shard_rows.append(len(builder))
        builder.add(entry)
    paths = ImagePaths(builder.finish())
    repeated = (f"{os.path.normpath(paths[row])!r} is listed {n} times" for row, n in KeySet(keys.keys()).repeated())
    raise_all([*invalid.listed(), *guard.outside.listed(), *first_few(repeated)], heading)
    return ImageCollection(_expand_shards(paths, shard_rows, heading) if shard_rows else paths, base)


def _from_folder(folder: Path, guard: _RootGuard) -> ImageCollection:
    shards, builder, unused = list[Path](), NameStoreBuilder(folder), Unused()
    for name in walk(folder, unused):
        if name.lower().endswith(TAR):
            shards.append(folder / name)
        else:
            guard.check(folder, name)
            builder.add(name)
    heading = f"Cannot use the folder {str(folder)!r}"
    if shards and not len(builder):  # next to images, a tar file is usually the archive they came from
        return _from_shards(shards, folder, guard, heading, unused)
    raise_all(guard.outside.listed(), heading)
    if shards:
        unused.add("tar files beside images", shards[0].name, len(shards))
    return ImageCollection(ImagePaths(builder.finish()), folder, unused.sentence(repr(str(folder))))


def _from_shards(
    shards: Sequence[Path],
    folder: Path,
    guard: _RootGuard,
    heading: str = "Cannot use these shards",
    unused: Unused | None = None,
) -> ImageCollection:
    for shard in shards:
        guard.check(Path(), str(shard))
    raise_all(guard.outside.listed(), heading)
    rows = ImagePaths.of(shards, folder)
    left = unused.sentence(repr(str(folder))) if unused else ""
    return ImageCollection(_expand_shards(rows, range(len(shards)), heading), folder, left)


def _expand_shards(paths: ImagePaths, shard_rows: Sequence[int], heading: str) -> ImagePaths:
    """Replace every row that names a shard by the images in it."""
    builder, damaged, is_shard_row = NameStoreBuilder(), Problems(), set(shard_rows)
    for row in range(len(paths)):
        base, name = paths.parts(row)
        if row not in is_shard_row:
            builder.begin(base)
            builder.add(name)
            continue
        try:
            index = index_shard(base / name)
        except InputError as error:
            damaged.add(str(error))
        else:
            builder.begin(base / name, index.spans)
            builder.add_all(index.names, index.ends)
    raise_all(damaged.listed(), heading)
    return ImagePaths(builder.finish())


def _real_folder() -> Callable[[str], str]:
    """Return a function that resolves links and dots in the folder of a path, so that one file has one name."""
    folders = lru_cache(maxsize=1024)(os.path.realpath)

    def real(path: str) -> str:
        parent, name = os.path.split(path)
        return f"{folders(parent)}{os.sep}{name}"

    return real


class _RootGuard:
    """Collects the paths that are outside a root folder; without a root, every path is allowed."""

    def __init__(self, root: str | Path | None) -> None:
        self.outside = Problems()
        self._root = None if root is None else Path(os.path.realpath(root))
        self._real = real_path()

    def check(self, base: Path, name: str) -> None:
        """Check one path, following symbolic links: a link inside the root may point outside."""
        if self._root is not None and not Path(self._real(base / name)).is_relative_to(self._root):
            self.outside.add(f"{str(base / name)!r} is outside {str(self._root)!r}")


def real_path() -> Callable[[Path], str]:
    """Return a function that resolves links and caches the folders it has seen."""
    folders = lru_cache(maxsize=1024)(os.path.realpath)

    def real(path: Path) -> str:
        parent, name = os.path.split(path)
        try:
            inside = os.path.join(folders(parent), name)  # noqa: PTH118 (one call for each of millions of rows)
        except ValueError:  # a NUL character, which no file name has
            return os.fspath(path)
        is_plain = name not in ("", ".", "..") and not os.path.islink(inside)  # noqa: PTH114
        return os.path.normcase(inside if is_plain else os.path.realpath(path))

    return real


@lru_cache(maxsize=4096)
def _prefix(base: Path, root: Path) -> str | None:
    """Return what tables show before the names inside a folder or shard, None if it is not below the root."""
    if not base.is_relative_to(root):
        return None
    inner = base.relative_to(root).as_posix()
    return "" if inner == "." else f"{inner}/"
