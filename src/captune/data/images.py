"""Image collections from folders, manifests, lists and tar shards."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path, PurePath
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

from captune.core.arrays import Ints
from captune.core.cards import read_json
from captune.core.errors import InputError, raise_all
from captune.core.files import is_file, is_folder
from captune.data.decoding import EncodedImage, ImageData, read_bytes
from captune.data.shards import SUFFIXES, Span, expand, index_shard, is_pattern, is_shard
from captune.data.tables import first_few, is_table, read_columns, read_lines

PATH_COLUMNS = ("path", "image", "image_path", "file", "filename", "filepath", "file_name")
MARKS = ("run.json", "audit.json", "captune-export.json")
"""Files in folders that captune wrote; their figures are not images to classify."""
LOCK = ".captune-lock"
MOST_NAMES = 10_000_000
MOST_CHARACTERS = 32_768
"""In one path; no system allows more."""
TAR = ".tar"


@dataclass(frozen=True, init=False)
class ImageCollection:
    """An ordered collection of images; an image is identified by its position.

    These are files; `data/inputs.py` and `data/precomputed.py` have the collections that are not. All names are in
    memory, which is meant for up to about two million images; `captune embed` works through more by partitions.

    Names are relative to `root`, and `unused` tells what else was found there.
    """

    files: tuple[str, ...]
    """The path of each image as text; `shard.tar/member` inside a tar shard."""
    root: Path
    unused: str = field(default="", compare=False)
    where: Ints | None = field(default=None, compare=False, repr=False)
    """For members of tar shards `(images, 3)`: characters in the path of the shard (0 for a plain file), offset and
    size; for items in memory `(images,)`: their rows."""
    kind: ClassVar[str] = "files"
    computed: ClassVar[tuple[str, ...]] = ("paths",)
    """Attributes that another selection of images computes again."""

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], root: Path, unused: str = "", where: Ints | None = None
    ) -> None:
        files = tuple(tidy(os.fspath(path)) for path in paths)
        self.__dict__.update(files=files, root=root, unused=unused, where=where)

    def __len__(self) -> int:
        return len(self.files)

    def __add__(self, other: ImageCollection) -> ImageCollection:
        """Return both collections, one after the other, with names relative to the first root."""
        if len(self) == 0 or len(other) == 0:
            return self if len(other) == 0 else other
        if not self._shares_source(other):
            raise InputError("Images in memory can only be joined with images of the same source.")
        where = None
        if self.where is not None or other.where is not None:
            plain = [
                np.zeros((len(part), 3), dtype=np.int64) if part.where is None else part.where for part in (self, other)
            ]
            where = np.concatenate(plain)
        return self._with(files=self.files + other.files, where=where)

    def subset(self, index: Ints | Sequence[int]) -> Self:
        """Return the images at these positions, in this order."""
        chosen = np.asarray(index, dtype=np.int64)
        files = tuple(self.files[position] for position in chosen.tolist())
        return self._with(files=files, where=None if self.where is None else self.where[chosen])

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Return where each image is."""
        return tuple(map(Path, self.files))

    @property
    def place(self) -> str:
        """Return where the images are, for messages."""
        return repr(str(self.root))

    def _with(self, **changed: Any) -> Self:  # noqa: ANN401
        other = object.__new__(type(self))
        other.__dict__.update({name: value for name, value in self.__dict__.items() if name not in self.computed})
        other.__dict__.update(changed)
        return other

    def _shares_source(self, other: ImageCollection) -> bool:
        return type(other) is ImageCollection

    def span(self, position: int) -> Span | None:
        """Return where an image is in its shard, or None for a plain file."""
        length, offset, size = (0, 0, 0) if self.where is None else self.where[position].tolist()
        return Span(Path(self.files[position][:length]), offset, size) if length else None

    def read(self, position: int) -> ImageData:
        """Read one image without decoding it, or raise an UnreadableImageError."""
        return EncodedImage(read_bytes(Path(self.files[position]), self.span(position)))

    def name(self, position: int) -> str:
        """Return the image's path as tables show it: relative to the root, with forward slashes."""
        shown = self.files[position].removeprefix(_prefix(self.root))
        return escaped(shown if os.sep == "/" else PurePath(shown).as_posix())

    @property
    def fingerprint(self) -> str:
        """Return a digest of all names and file sizes, which records the data that a run used."""
        digest = hashlib.blake2b(digest_size=16)
        for position in range(len(self)):
            digest.update(f"{self.name(position)}\0{self._size(position)}\n".encode())
        return digest.hexdigest()

    def _size(self, position: int) -> int:
        span = self.span(position)
        if span is not None:
            return span.size
        try:
            found = os.stat(self.files[position])  # noqa: PTH116
        except (OSError, ValueError):
            return -1
        return found.st_size if stat.S_ISREG(found.st_mode) else -1


class ItemCollection(ImageCollection):
    """Images that are items of an object in memory, such as a list, a dataset or a matrix of embeddings."""

    items: Any
    where: Ints

    def __init__(self, items: Any, names: Iterable[str]) -> None:  # noqa: ANN401
        super().__init__(names, Path())
        self.__dict__.update(items=items, where=np.arange(len(self.files), dtype=np.int64))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ItemCollection) and self._shares_source(other) and self.files == other.files

    def __hash__(self) -> int:
        return hash((id(self.items), self.files))

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
        for shard in shards:
            guard.check(str(shard))
        heading = "Cannot use these shards"
        raise_all(first_few(guard.outside), heading)
        folder = Path(os.path.commonpath([shard.parent for shard in shards]))
        return _expand_shards([str(shard) for shard in shards], folder, heading)
    raise InputError(
        f"No images at {str(source)!r}: it is neither a folder nor a file. Expected a folder of images, .tar shards, "
        "a CSV or Parquet manifest with a 'path' column, or a text file with one path per line."
    )


def from_paths(paths: Iterable[str | os.PathLike[str]], root: str | Path | None = None) -> ImageCollection:
    """Return the images at these paths, which are relative to the working directory."""
    return _from_entries((os.fspath(path) for path in paths), Path(), "Cannot use these paths", _RootGuard(root))


def _from_entries(entries: Iterable[str], base: Path, heading: str, guard: _RootGuard) -> ImageCollection:
    invalid, counts, files, real = list[str](), Counter[str](), list[str](), real_path()
    for number, line in enumerate(entries, start=1):
        entry = line.strip() if len(line) <= MOST_CHARACTERS else ""
        if not entry or "\0" in entry:
            kind = f"a path of {len(line):,} characters" if len(line) > MOST_CHARACTERS else "an empty path"
            invalid.append(f"row {number} has {'a NUL character in its path' if entry else kind}")
            continue
        path = os.path.join(base, entry)  # noqa: PTH118 (this runs once per image)
        guard.check(path)
        counts[real(path)] += 1
        files.append(path)
        if len(files) > MOST_NAMES:
            raise InputError(
                f"{heading}: it lists more than {MOST_NAMES:,} images, and all names would be in memory. Embed them by "
                "partitions (captune embed), then adapt to a sample of the partitions."
            )
    repeated = (f"{path!r} is listed {n} times" for path, n in counts.items() if n > 1)
    raise_all([*first_few(invalid), *first_few(guard.outside), *first_few(repeated)], heading)
    return _expand_shards(files, base, heading)


def _from_folder(folder: Path, guard: _RootGuard) -> ImageCollection:
    shards, files, unused = list[str](), list[str](), Unused()
    for name in walk(folder, unused):
        path = os.path.join(folder, name)  # noqa: PTH118
        (shards if name.lower().endswith(TAR) else files).append(path)
        guard.check(path)
    heading = f"Cannot use the folder {str(folder)!r}"
    raise_all(first_few(guard.outside), heading)
    if shards and files:  # next to images, a tar file is usually the archive they came from
        unused.add("tar files beside images", Path(shards[0]).name, len(shards))
    left = unused.sentence(repr(str(folder)))
    return ImageCollection(files, folder, left) if files else _expand_shards(shards, folder, heading, left)


def _expand_shards(files: Sequence[str], root: Path, heading: str, unused: str = "") -> ImageCollection:
    """Return a collection in which every tar shard is replaced by the images in it."""
    is_shard_row = [is_shard(path) for path in files]
    if not any(is_shard_row):
        return ImageCollection(files, root, unused)
    expanded, where, damaged = list[str](), list[tuple[int, int, int]](), list[str]()
    for path, has_members in zip(map(tidy, files), is_shard_row, strict=True):
        if not has_members:
            expanded.append(path)
            where.append((0, 0, 0))
            continue
        try:
            for member in index_shard(Path(path)):
                expanded.append(f"{path}/{member.name}")
                where.append((len(path), member.offset, member.size))
        except InputError as error:
            damaged.append(str(error))
    raise_all(first_few(damaged), heading)
    return ImageCollection(expanded, root, unused, np.asarray(where, dtype=np.int64).reshape(-1, 3))


def escaped(name: str) -> str:
    """Return a path as tables show it: bytes that are not UTF-8 are escaped."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "backslashreplace")


def tidy(name: str) -> str:
    """Return a path as `str(Path(...))` would, but faster."""
    is_tidy = os.sep == "/" and "//" not in name and "/." not in name and name[:1] != "." and name[-1:] != "/"
    return name if is_tidy else str(PurePath(name))


def real_path() -> Callable[[str | Path], str]:
    """Return a function that resolves all links of a path, and remembers folders it has seen."""
    folders = lru_cache(maxsize=1024)(os.path.realpath)

    def real(path: str | Path) -> str:
        parent, name = os.path.split(path)
        try:
            inside = os.path.join(folders(parent), name)  # noqa: PTH118
            is_plain = name not in ("", ".", "..") and not os.path.islink(inside)  # noqa: PTH114
        except ValueError:  # a NUL character, which no file name has
            return os.fspath(path)
        return os.path.normcase(inside if is_plain else os.path.realpath(path))

    return real


class _RootGuard:
    """Collects the paths that are outside a root folder; without a root, every path is allowed."""

    def __init__(self, root: str | Path | None) -> None:
        self.outside = list[str]()
        self._root = None if root is None else Path(os.path.realpath(root))
        self._real = real_path()

    def check(self, path: str) -> None:
        """Check one path, following symbolic links: a link inside the root may point outside."""
        if self._root is not None and not Path(self._real(path)).is_relative_to(self._root):
            self.outside.append(f"{path!r} is outside {str(self._root)!r}")


@lru_cache(maxsize=64)
def _prefix(root: Path) -> str:
    """Return the part of a path that names do not show."""
    return "" if root == Path() else os.path.join(root, "")  # noqa: PTH118 (ends with a slash)


class Unused:
    """What was found in a folder and is not used: how many of each kind, and the first of them."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, kind: str, name: str, count: int = 1) -> None:
        """Count files or folders of a kind, such as 'hidden files'."""
        before, first = self._found.get(kind, (0, name))
        self._found[kind] = before + count, first

    def total(self) -> int:
        """Return how many files and folders are not used."""
        return sum(count for count, _ in self._found.values())

    def sentence(self, place: str) -> str:
        """Return one line that accounts for everything that is not used, empty if there is nothing."""
        kinds = (f"{kind}: {count} (the first is {first!r})" for kind, (count, first) in self._found.items())
        return f"Not used in {place}: {'; '.join(kinds)}." if self._found else ""


def walk(folder: Path, unused: Unused) -> Iterator[str]:
    """Yield the names of images and shards below a folder, in a stable order; a folder is visited once.

    Folders that are links come last, so that a link never hides the folder that it leads to.
    """
    visited, links = set[tuple[int, int]](), [""]
    for start in links:  # grows while links are found
        waiting = [start]
        while waiting:
            inner = waiting.pop()
            entries = _list(folder, inner, visited, unused)
            below = f"{inner}{os.sep}" if inner else ""
            folders = list[str]()
            for entry in entries:
                name = below + entry.name
                if entry.name.startswith("."):
                    unused.add("hidden files and folders", name)
                elif _is_folder(entry):
                    (links if entry.is_symlink() else folders).append(name)
                elif os.path.splitext(entry.name)[1].lower() in SUFFIXES | {TAR}:  # noqa: PTH122
                    yield name
                else:
                    unused.add("files that are not images", name)
            waiting += reversed(folders)


def _list(folder: Path, inner: str, visited: set[tuple[int, int]], unused: Unused) -> list[os.DirEntry[str]]:
    """Return the content of a folder by name, nothing if it is not used."""
    path = folder / inner
    try:
        facts = path.stat()
        if (facts.st_dev, facts.st_ino) in visited:
            unused.add("links to folders that are used already", inner)
            return []
        visited.add((facts.st_dev, facts.st_ino))
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        if not inner:
            raise InputError(f"The folder {str(folder)!r} cannot be read: {error.strerror}.") from error
        unused.add(f"folders that cannot be read ({error.strerror})", inner)
        return []
    names = {entry.name for entry in entries}
    if inner and (LOCK in names or any(_is_ours(path / mark) for mark in MARKS if mark in names)):
        unused.add("results of captune", inner)
        return []
    return entries


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that cannot be followed
        return False


def _is_ours(mark: Path) -> bool:
    """Return whether a file is a card of captune; another program's run.json is not."""
    try:
        content = read_json(mark)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and str(content.get("format", "")).startswith("captune-")
