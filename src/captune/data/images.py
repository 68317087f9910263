"""Image collections from folders, manifests, lists and tar shards."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

from captune.core.arrays import Ints
from captune.core.errors import InputError, ProblemList, raise_all
from captune.core.files import is_file, is_folder, read_json
from captune.data.decoding import ImageData, read_bytes
from captune.data.shards import SUFFIXES, Span, expand, index_shard, is_shard
from captune.data.tables import first_few, is_table, read_columns, read_lines

PATH_COLUMNS = ("path", "image", "image_path", "file", "filename", "filepath", "file_name")
MARKS = ("run.json", "audit.json", "captune-export.json")
"""Files in folders that captune wrote; their figures are not images to classify."""
LOCK = ".captune-lock"
MOST_NAMES = 10_000_000
MOST_CHARACTERS = 32_768
"""In one path; no system allows more."""


class ImageCollection:
    """An ordered collection of images; an image is identified by its position, and nothing changes it.

    These are files; `data/inputs.py` and `data/precomputed.py` have the collections of `items` in memory. All names are
    in memory, which is meant for up to about two million images; `captune embed` works through more by partitions.

    Attributes:
        files: The path of each image as text; `shard.tar/member` inside a tar shard.
        root: The folder that names are relative to.
        unused: What else was found there.
        where: For files `(images, 3)`: characters in the path of the tar shard (0 for a plain file), offset and size;
            for items in memory `(images,)`: their rows.
        items: What images in memory are items of, such as a list, a dataset or a matrix of embeddings.
    """

    kind: ClassVar[str] = "files"

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], root: Path, where: Ints | None = None, items: object = None
    ) -> None:
        self.files = tuple(tidy(os.fspath(path)) for path in paths)
        self.root, self.unused = root, ""
        self.items: Any = items
        self.where: Ints = np.zeros((len(self.files), 3), dtype=np.int64) if where is None else where

    def __len__(self) -> int:
        return len(self.files)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ImageCollection) or type(other) is not type(self) or other.items is not self.items:
            return False
        return (self.files, self.root) == (other.files, other.root)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} images)"

    def __hash__(self) -> int:
        return hash((self.files, self.root))

    def __add__(self, other: ImageCollection) -> ImageCollection:
        """Return both collections, one after the other, with names relative to the first root."""
        if len(self) == 0 or len(other) == 0:
            return self if len(other) == 0 else other
        if type(other) is not type(self) or other.items is not self.items:
            raise InputError("Images in memory can only be joined with images of the same source.")
        return self._with(files=self.files + other.files, where=np.concatenate([self.where, other.where]))

    def subset(self, index: Ints | Sequence[int]) -> Self:
        """Return the images at these positions, in this order."""
        chosen = np.asarray(index, dtype=np.int64)
        files = tuple(self.files[position] for position in chosen.tolist())
        return self._with(files=files, where=self.where[chosen])

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Return where each image is."""
        return tuple(map(Path, self.files))

    @property
    def place(self) -> str:
        """Return where the images are, for messages."""
        return {"files": repr(str(self.root)), "memory": "memory"}.get(self.kind, f"the {self.kind}")

    def _with(self, **changed: Any) -> Self:  # noqa: ANN401
        """Return a copy with other fields; what is computed from them is computed again."""
        fields = {k: v for k, v in vars(self).items() if not isinstance(getattr(type(self), k, None), cached_property)}
        other = object.__new__(type(self))
        vars(other).update(fields | changed)
        return other

    def span(self, position: int) -> Span | None:
        """Return where an image is in its shard, or None for a plain file."""
        length, offset, size = self.where[position].tolist()
        return Span(Path(self.files[position][:length]), offset, size) if length else None

    def read(self, position: int) -> ImageData:
        """Read one image without decoding it, or raise an UnreadableImageError."""
        return ImageData(read_bytes(Path(self.files[position]), self.span(position)))

    def name(self, position: int) -> str:
        """Return the image's path as tables show it: relative to the root, with forward slashes."""
        shown = self.files[position].removeprefix(os.path.join(self.root, ""))  # noqa: PTH118 (ends with a slash)
        return escaped(shown if os.sep == "/" else PurePath(shown).as_posix())

    @property
    def fingerprint(self) -> str:
        """Return a digest of all names and of sizes or contents, which records the data that a run used."""
        digest = hashlib.blake2b(digest_size=16)
        for facts in self._facts():
            digest.update(facts)
        return digest.hexdigest()

    def _facts(self) -> Iterator[Any]:
        """Yield the name and the size of every file, -1 for one that is gone, as bytes."""
        for position in range(len(self)):
            span = self.span(position)
            size = -1 if span is None else span.size
            if span is None:
                with suppress(OSError, ValueError):
                    found = os.stat(self.files[position])  # noqa: PTH116
                    size = found.st_size if stat.S_ISREG(found.st_mode) else -1
            yield f"{self.name(position)}\0{size}\n".encode()


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
    path = Path(source)
    if is_folder(path):
        tar_files, files, unused = list[str](), list[str](), defaultdict[str, list[str]](list)
        for name in walk(path, unused):
            (tar_files if name.lower().endswith(".tar") else files).append(os.path.join(path, name))  # noqa: PTH118
        if files:  # next to images, a tar file is usually the archive they came from
            unused["tar files beside images"] += [Path(shard).name for shard in tar_files]
        kinds = [f"{kind}: {len(names)} (the first is {names[0]!r})" for kind, names in unused.items() if names]
        left = f"Not used in {str(path)!r}: {'; '.join(kinds)}." if kinds else ""
        return _collection(files or tar_files, path, root, f"Cannot use the folder {str(path)!r}", unused=left)
    if is_file(path) and not is_shard(path):
        entries = (row[0] for row in read_columns(path, [PATH_COLUMNS])) if is_table(path) else read_lines(path)
        return from_paths(entries, root, path.parent, f"Cannot use the manifest {str(path)!r}")
    if shards := [str(path)] if is_file(path) else expand(str(source)):
        folder = Path(os.path.commonpath([os.path.dirname(shard) for shard in shards]))  # noqa: PTH120
        return _collection(shards, folder, root, "Cannot use these shards")
    raise InputError(
        f"No images at {str(source)!r}: it is neither a folder nor a file. Expected a folder of images, .tar shards, "
        "a CSV or Parquet manifest with a 'path' column, or a text file with one path per line."
    )


def from_paths(
    paths: Iterable[str | os.PathLike[str]],
    root: str | Path | None = None,
    base: Path = Path(),
    heading: str = "Cannot use these paths",
) -> ImageCollection:
    """Return the images at these paths, which are relative to a folder."""
    invalid, files = list[str](), list[str]()
    for number, path in enumerate(islice(paths, MOST_NAMES + 1), start=1):
        line = os.fspath(path).strip()
        if len(line) > MOST_CHARACTERS:
            invalid.append(f"row {number} has a path of {len(line):,} characters")
        elif not line or "\0" in line:
            invalid.append(f"row {number} has {'a NUL character in its path' if line else 'an empty path'}")
        else:
            files.append(os.path.join(base, line))  # noqa: PTH118 (this runs once per image)
    if len(files) > MOST_NAMES:
        advice = "Embed them by partitions (captune embed), then adapt to a sample of these"
        raise InputError(f"{heading}: it lists more than {MOST_NAMES:,} images. {advice}.")
    repeated = (f"{path!r} is listed {n} times" for path, n in Counter(map(real_path(), files)).items() if n > 1)
    return _collection(files, base, root, heading, [*first_few(invalid), *first_few(repeated)])


def _collection(
    files: Sequence[str],
    folder: Path,
    root: str | Path | None,
    heading: str,
    problems: Sequence[str] = (),
    unused: str = "",
) -> ImageCollection:
    """Return the collection of files below a root; every tar shard is replaced by the images in it."""
    outside = list[str]()
    if root is not None:  # links are followed: one inside the root may point outside
        inside, real = Path(os.path.realpath(root)), real_path()
        outside = [f"{f!r} is outside {str(inside)!r}" for f in files if not Path(real(f)).is_relative_to(inside)]
    raise_all([*problems, *first_few(outside)], heading)
    if not any(are_shards := list(map(is_shard, files))):
        return ImageCollection(files, folder)._with(unused=unused)
    expanded, where, damaged = list[str](), list[tuple[int, int, int]](), ProblemList()
    for path, has_members in zip(map(tidy, files), are_shards, strict=True):
        if not has_members:
            expanded.append(path)
            where.append((0, 0, 0))
            continue
        for member in damaged.collect(partial(index_shard, Path(path))) or ():
            expanded.append(f"{path}/{member.name}")
            where.append((len(path), member.offset, member.size))
    raise_all(first_few(damaged), heading)
    spans = np.asarray(where, dtype=np.int64).reshape(-1, 3)
    return ImageCollection(expanded, folder, spans)._with(unused=unused)


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


def walk(folder: Path, unused: dict[str, list[str]]) -> Iterator[str]:
    """Yield the names of images and shards below a folder, in a stable order; a folder is visited once.

    Folders that are links come last, so that a link never hides the folder that it leads to. What is not used is added
    to `unused` by kind, such as 'hidden files and folders'.
    """
    visited, links = set[tuple[int, int]](), [""]
    for start in links:  # grows while links are found
        waiting = [start]
        while waiting:
            inner = waiting.pop()
            path = os.path.join(folder, inner)  # noqa: PTH118
            try:
                facts, entries = os.stat(path), sorted(os.scandir(path), key=lambda entry: entry.name)  # noqa: PTH116
            except OSError as error:
                if not inner:
                    raise InputError(f"The folder {str(folder)!r} cannot be read: {error.strerror}.") from error
                unused[f"folders that cannot be read ({error.strerror})"].append(inner)
                continue
            names, is_known = {entry.name for entry in entries}, (facts.st_dev, facts.st_ino) in visited
            is_ours = LOCK in names or any(_is_ours(Path(path, mark)) for mark in names.intersection(MARKS))
            if inner and (is_known or is_ours):
                unused["links to folders that are used already" if is_known else "results of captune"].append(inner)
                continue
            visited.add((facts.st_dev, facts.st_ino))
            folders = list[str]()
            for entry in entries:
                name = os.path.join(inner, entry.name)  # noqa: PTH118
                if entry.name.startswith("."):
                    unused["hidden files and folders"].append(name)
                elif entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and is_folder(entry.path)):
                    (links if entry.is_symlink() else folders).append(name)
                elif os.path.splitext(name)[1].lower() in SUFFIXES | {".tar"}:  # noqa: PTH122
                    yield name
                else:
                    unused["files that are not images"].append(name)
            waiting += reversed(folders)


def _is_ours(mark: Path) -> bool:
    """Return whether a file is a card of captune; another program's run.json is not."""
    with suppress(OSError, ValueError, AttributeError):
        return str(read_json(mark).get("format", "")).startswith("captune-")
    return False
