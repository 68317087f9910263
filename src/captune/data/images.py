"""Where the images are: folders, manifests, lists and tar shards, resolved to one ordered collection."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np

from captune.core.arrays import Ints
from captune.core.errors import InputError, raise_all
from captune.core.files import is_file, is_folder
from captune.data.keys import KeyList, KeySet
from captune.data.paths import SUFFIXES, ImagePaths, NameStoreBuilder
from captune.data.shards import expand, index_shard, is_pattern, is_shard
from captune.data.tables import Tally, is_table, read_columns, read_lines, shorten

PATH_COLUMNS = ("path", "image", "image_path", "file", "filename", "filepath", "file_name")
LABEL_COLUMNS = ("label", "class", "class_name", "category", "target")
ROWS_AT_ONCE = 8192


@dataclass(frozen=True, init=False)
class ImageCollection:
    """An ordered set of images; an image is its position.

    Attributes:
        paths: Where each image is; one inside a tar shard is `shard.tar/member`. Any sequence of paths is taken, and
            held in a few bytes each.
        root: The folder that names in tables are relative to.
    """

    paths: ImagePaths
    root: Path

    def __init__(self, paths: Sequence[Path], root: Path) -> None:
        held = paths if isinstance(paths, ImagePaths) else ImagePaths.of(paths, root)
        object.__setattr__(self, "paths", held)
        object.__setattr__(self, "root", root)

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, index: Ints | Sequence[int]) -> ImageCollection:
        """Return the images at these positions, in this order."""
        return ImageCollection(self.paths.subset(index), self.root)

    def name(self, position: int) -> str:
        """Return the image's path as tables show it: relative to the root, with forward slashes."""
        base, name = self.paths.parts(position)
        prefix = _shown_base(base, self.root)
        if prefix is None or os.sep != "/" or name.startswith("/"):
            path = base / name
            shown = (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()
        else:
            shown = prefix + name
        # A file name may hold bytes that are no UTF-8; tables show them escaped instead of failing.
        return shown if shown.isascii() else os.fsencode(shown).decode("utf-8", "backslashreplace")

    @property
    def fingerprint(self) -> str:
        """Return a digest of every name and file size, so that a run records which data it saw."""
        digest = hashlib.blake2b(digest_size=16)
        for position in range(len(self)):
            digest.update(f"{self.name(position)}\0{self._size(position)}\n".encode())
        return digest.hexdigest()

    def _size(self, position: int) -> int:
        span = self.paths.span(position)
        if span is not None:
            return span.size
        path = self.paths[position]
        return path.stat().st_size if is_file(path) else -1


def find_images(source: str | Path, root: str | Path | None = None) -> ImageCollection:
    """Collect images from a folder (recursively), tar shards, a CSV/Parquet manifest or a text file of paths.

    Shards are a .tar file, a pattern such as `folder/*.tar` or `shard-{000..009}.tar`, a folder that holds .tar files
    and no images, or lines of a list. Manifest paths are resolved against the manifest's folder; with `root` given,
    nothing may lead outside it.
    """
    path = Path(source)
    if is_folder(path):
        return _from_folder(path, root)
    if is_file(path) and not is_shard(path):
        entries = (row[0] for row in read_columns(path, [PATH_COLUMNS])) if is_table(path) else read_lines(path)
        return _resolve(entries, path, root)
    if is_file(path) or is_pattern(str(source)):
        shards = [path] if is_file(path) else expand(str(source))
        return _from_shards(shards, Path(os.path.commonpath([shard.parent for shard in shards])), root)
    raise InputError(
        f"No images at {str(source)!r}: it is neither a folder nor a file. Expected a folder of images, .tar shards, "
        "a CSV or Parquet manifest with a 'path' column, or a text file with one path a line."
    )


def read_labels(source: str | Path, images: ImageCollection, names: Sequence[str]) -> Ints:
    """Return the class id of every image, -1 where none is given, from `folders` or a CSV/Parquet table."""
    class_ids = {name: i for i, name in enumerate(names)}
    problems = Tally()
    if str(source) == "folders":
        given: Iterable[tuple[int, str]] = ((i, path.parent.name) for i, path in enumerate(images.paths))
    else:
        given = _table_labels(Path(source), images, problems)
    labels = np.full(len(images), -1, dtype=np.int64)
    unknown: Counter[str] = Counter()
    for position, name in given:
        class_id = class_ids.get(name)
        if class_id is None:
            unknown.update([name] if name else [])
        elif labels[position] not in (-1, class_id):
            problems.add(f"{images.name(position)!r} is both {names[labels[position]]!r} and {name!r}")
        else:
            labels[position] = class_id
    strangers = shorten([f"{name!r} names no class ({count} images)" for name, count in sorted(unknown.items())])
    raise_all([*problems.shown(), *strangers], f"These labels cannot be used (classes: {', '.join(shorten(names))})")
    return labels


def _table_labels(path: Path, images: ImageCollection, problems: Tally) -> Iterator[tuple[int, str]]:
    if not is_file(path):
        raise InputError(f"No labels at {str(path)!r}: expected 'folders' or a CSV/Parquet table (path, label).")
    real, known = _real_path(), KeyList()
    for image in images.paths:
        known.add(real(image))
    positions, folders = KeySet(known.keys()), (path.parent, images.root)
    first, n_strays = "", 0
    rows = read_columns(path, [PATH_COLUMNS, LABEL_COLUMNS])
    while chunk := list(islice(rows, ROWS_AT_ONCE)):
        found = np.full(len(chunk), -1, dtype=np.int64)
        for folder in reversed(folders):  # beside the table comes first
            wanted = KeyList()
            for entry, _ in chunk:
                wanted.add(real(folder / entry.strip()))
            places = positions.find(wanted.keys())
            found = np.where(places >= 0, places, found)
        for position, (entry, label) in zip(found.tolist(), chunk, strict=True):
            if position >= 0:
                yield position, label.strip()
            else:
                first, n_strays = first or entry, n_strays + 1
    if n_strays:
        problems.add(
            f"{n_strays} labeled paths in {str(path)!r} are not among the images, first {first!r}; paths are "
            f"resolved against the table's folder or {str(images.root)!r}"
        )


def _resolve(entries: Iterable[str], manifest: Path, root: str | Path | None) -> ImageCollection:
    base, prefix = manifest.parent, os.path.join(manifest.parent, "")  # noqa: PTH118 (ends with a slash)
    wrong, fence, keys, shard_rows = Tally(), _Fence(root), KeyList(), []
    builder = NameStoreBuilder()
    builder.begin(base)
    for number, line in enumerate(entries, start=1):
        entry = line.strip()
        if not entry or "\0" in entry:
            wrong.add(f"row {number} " + ("is no path: it holds a NUL character" if entry else "has an empty path"))
            continue
        fence.check(base, entry)
        keys.add(os.path.normpath(entry if os.path.isabs(entry) else prefix + entry))  # noqa: PTH117
        if is_shard(entry):
            shard_rows.append(len(builder))
        builder.add(entry)
    paths, heading = ImagePaths(builder.finish()), f"The manifest {str(manifest)!r} cannot be used"
    twice = [f"{os.path.normpath(paths[row])!r} is listed {n} times" for row, n in KeySet(keys.keys()).repeated()]
    raise_all([*wrong.shown(), *fence.outside.shown(), *shorten(twice)], heading)
    return ImageCollection(_expand_rows(paths, shard_rows, heading) if shard_rows else paths, base)


def _from_folder(folder: Path, root: str | Path | None) -> ImageCollection:
    fence, shards = _Fence(root), list[str]()
    builder = NameStoreBuilder()
    builder.begin(folder)
    for name in _walk(folder):
        if name.lower().endswith(".tar"):
            shards.append(name)
        else:
            fence.check(folder, name)
            builder.add(name)
    heading = f"The folder {str(folder)!r} cannot be used"
    if shards and not len(builder):  # beside images, a tar file is most often where they came from
        return _from_shards([folder / name for name in shards], folder, root, heading)
    raise_all(fence.outside.shown(), heading)
    return ImageCollection(ImagePaths(builder.finish()), folder)


def _from_shards(
    shards: Sequence[Path], folder: Path, root: str | Path | None, heading: str = "These shards cannot be used"
) -> ImageCollection:
    fence = _Fence(root)
    for shard in shards:
        fence.check(Path(), str(shard))
    raise_all(fence.outside.shown(), heading)
    rows = ImagePaths.of(shards, folder)
    return ImageCollection(_expand_rows(rows, range(len(shards)), heading), folder)


def _expand_rows(paths: ImagePaths, shard_rows: Sequence[int], heading: str) -> ImagePaths:
    """Return the paths with the images of a shard in the place of each row that names one."""
    builder, damaged, is_shard_row = NameStoreBuilder(), Tally(), set(shard_rows)
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
    raise_all(damaged.shown(), heading)
    return ImagePaths(builder.finish())


class _Fence:
    """Notes what leads outside a root; without a root, everything is inside."""

    def __init__(self, root: str | Path | None) -> None:
        self.outside = Tally()
        self._limit = None if root is None else Path(os.path.realpath(root))
        self._real = _real_path()

    def check(self, base: Path, name: str) -> None:
        """Look at one path; symbolic links are followed: a link inside may lead outside."""
        if self._limit is not None and not Path(self._real(base / name)).is_relative_to(self._limit):
            self.outside.add(f"{str(base / name)!r} leads outside {str(self._limit)!r}")


def _real_path() -> Callable[[Path], str]:
    """Return a function that follows links, and remembers the folders that it has just met."""
    folders = lru_cache(maxsize=1024)(os.path.realpath)

    def real(path: Path) -> str:
        parent, name = os.path.split(path)
        try:
            inside = os.path.join(folders(parent), name)  # noqa: PTH118 (one for each of millions of rows)
        except ValueError:  # a NUL character: no file is called so
            return os.fspath(path)
        is_plain = name not in ("", ".", "..") and not os.path.islink(inside)  # noqa: PTH114
        return os.path.normcase(inside if is_plain else os.path.realpath(path))

    return real


@lru_cache(maxsize=4096)
def _shown_base(base: Path, root: Path) -> str | None:
    """Return what tables show before the names below a folder or shard, None where it is not below the root."""
    if not base.is_relative_to(root):
        return None
    inner = base.relative_to(root).as_posix()
    return "" if inner == "." else f"{inner}/"


def _walk(folder: Path) -> Iterator[str]:
    """Yield the names of images and shards below a folder, in a stable order."""
    top = str(folder)
    for parent, children, files in os.walk(top):
        children[:] = sorted(child for child in children if not child.startswith("."))
        inner = parent[len(top) :].lstrip(os.sep)
        for file in sorted(files):
            suffix = os.path.splitext(file)[1].lower()  # noqa: PTH122
            if not file.startswith(".") and (suffix in SUFFIXES or suffix == ".tar"):
                yield f"{inner}{os.sep}{file}" if inner else file
