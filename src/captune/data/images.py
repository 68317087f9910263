"""Where the images are: folders, manifests and lists, resolved to one ordered collection."""

from __future__ import annotations

import csv
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from captune.arrays import Ints
from captune.errors import InputError, missing_extra, raise_all
from captune.files import is_file, is_folder

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"})
PATH_COLUMNS = ("path", "image", "image_path", "file", "filename", "filepath", "file_name")
LABEL_COLUMNS = ("label", "class", "class_name", "category", "target")
MOST_SHOWN = 10


@dataclass(frozen=True)
class ImageCollection:
    """An ordered set of image files; an image is its position.

    Attributes:
        paths: Where each image is.
        root: The folder that names in tables are relative to.
    """

    paths: tuple[Path, ...]
    root: Path

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, index: Ints | Sequence[int]) -> ImageCollection:
        """Return the images at these positions, in this order."""
        return ImageCollection(tuple(self.paths[int(i)] for i in index), self.root)

    def name(self, position: int) -> str:
        """Return the image's path as tables show it: relative to the root, with forward slashes."""
        path = self.paths[position]
        shown = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        # A file name may hold bytes that are no UTF-8; tables show them escaped instead of failing.
        return os.fsencode(shown.as_posix()).decode("utf-8", "backslashreplace")

    @property
    def fingerprint(self) -> str:
        """Return a digest of every name and file size, so that a run records which data it saw."""
        digest = hashlib.blake2b(digest_size=16)
        for position, path in enumerate(self.paths):
            size = path.stat().st_size if is_file(path) else -1
            digest.update(f"{self.name(position)}\0{size}\n".encode())
        return digest.hexdigest()


def find_images(source: str | Path, root: str | Path | None = None) -> ImageCollection:
    """Collect images from a folder (recursively), a CSV/Parquet manifest or a text file of paths.

    Manifest paths are resolved against the manifest's folder; with `root` given, nothing may lead outside it.
    """
    path = Path(source)
    if is_folder(path):
        paths = tuple(_walk(path))
        raise_all(_outside(paths, root), f"The folder {str(source)!r} cannot be used")
        return ImageCollection(paths, path)
    if not is_file(path):
        raise InputError(
            f"No images at {str(source)!r}: it is neither a folder nor a file. Expected a folder of images, a "
            "CSV or Parquet manifest with a 'path' column, or a text file with one path a line."
        )
    entries = read_column(path, PATH_COLUMNS) if _is_table(path) else _lines(path)
    return _resolve(entries, path, root)


def read_labels(source: str | Path, images: ImageCollection, names: Sequence[str]) -> Ints:
    """Return the class id of every image, -1 where none is given, from `folders` or a CSV/Parquet table."""
    class_ids = {name: i for i, name in enumerate(names)}
    problems: list[str] = []
    if str(source) == "folders":
        given = [(i, path.parent.name) for i, path in enumerate(images.paths)]
    else:
        given = list(_table_labels(Path(source), images, problems))
    labels = np.full(len(images), -1, dtype=np.int64)
    unknown: Counter[str] = Counter()
    for position, name in given:
        if name not in class_ids:
            unknown.update([name] if name else [])
        elif labels[position] not in (-1, class_ids[name]):
            problems.append(f"{images.name(position)!r} is both {names[labels[position]]!r} and {name!r}")
        else:
            labels[position] = class_ids[name]
    problems += _shorten([f"{name!r} names no class ({count} images)" for name, count in sorted(unknown.items())])
    raise_all(problems, f"These labels cannot be used (classes: {', '.join(_shorten(names))})")
    return labels


def read_column(path: Path, wanted: Sequence[str]) -> list[str]:
    """Return one column of a CSV or Parquet table, found by the first of the wanted names that it has."""
    return [row[0] for row in _read_columns(path, [wanted])]


def _table_labels(path: Path, images: ImageCollection, problems: list[str]) -> Iterator[tuple[int, str]]:
    if not is_file(path):
        raise InputError(f"No labels at {str(path)!r}: expected 'folders' or a CSV/Parquet table (path, label).")
    positions = {_normal(image): i for i, image in enumerate(images.paths)}
    strays = []
    for entry, label in _read_columns(path, [PATH_COLUMNS, LABEL_COLUMNS]):
        candidates = (_normal(path.parent / entry.strip()), _normal(images.root / entry.strip()))
        position = next((positions[c] for c in candidates if c in positions), None)
        if position is None:
            strays.append(entry)
        else:
            yield position, label.strip()
    if strays:
        problems.append(
            f"{len(strays)} labeled paths in {str(path)!r} are not among the images, first {strays[0]!r}; paths are "
            f"resolved against the table's folder or {str(images.root)!r}"
        )


def _read_columns(path: Path, wanted: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    if path.suffix.lower() == ".parquet":
        header, rows = _parquet(path, wanted)
    else:
        header, rows = _csv(path)
    lowered = [name.strip().lower() for name in header]
    columns = [next((lowered.index(name) for name in options if name in lowered), -1) for options in wanted]
    raise_all(
        (
            f"no {options[0]!r} column (accepted: {', '.join(options)}), found: {', '.join(header) or 'nothing'}"
            for options, column in zip(wanted, columns, strict=True)
            if column < 0
        ),
        f"The table {str(path)!r} cannot be used",
    )
    short = [str(i + 2) for i, row in enumerate(rows) if len(row) <= max(columns)]
    if short:
        raise InputError(f"The table {str(path)!r} has too few columns in line {', '.join(short[:MOST_SHOWN])}.")
    return [tuple(row[column] for column in columns) for row in rows]


def _csv(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The table {str(path)!r} is not a readable UTF-8 CSV file: {error}.") from error
    return (rows[0], rows[1:]) if rows else ([], [])


def _parquet(path: Path, wanted: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "parquet") from error
    accepted = {name for options in wanted for name in options}
    try:
        header = [name for name in parquet.read_schema(path).names if name.strip().lower() in accepted]
        table = parquet.read_table(path, columns=header)
    except (arrow.ArrowInvalid, OSError) as error:
        raise InputError(f"The table {str(path)!r} is not a Parquet file: {error}.") from error
    columns = [["" if value is None else str(value) for value in table[name].to_pylist()] for name in header]
    return header, [list(row) for row in zip(*columns, strict=True)]


def _resolve(entries: Iterable[str], manifest: Path, root: str | Path | None) -> ImageCollection:
    rows = [entry.strip() for entry in entries]
    wrong = {i: "has an empty path" for i, entry in enumerate(rows) if not entry}
    wrong |= {i: "is no path: it holds a NUL character" for i, entry in enumerate(rows) if "\0" in entry}
    problems = _shorten([f"row {i + 1} {what}" for i, what in sorted(wrong.items())])
    paths = [manifest.parent / entry for i, entry in enumerate(rows) if i not in wrong]
    problems += _outside(paths, root)
    counts = Counter(os.path.normpath(path) for path in paths)
    problems += _shorten([f"{path!r} is listed {count} times" for path, count in counts.items() if count > 1])
    raise_all(problems, f"The manifest {str(manifest)!r} cannot be used")
    return ImageCollection(tuple(paths), manifest.parent)


def _outside(paths: Sequence[Path], root: str | Path | None) -> list[str]:
    if root is None:
        return []
    limit = os.path.realpath(root)  # symbolic links are followed: a link inside may lead outside
    outside = [path for path in paths if not Path(os.path.realpath(path)).is_relative_to(limit)]
    return _shorten([f"{str(path)!r} leads outside {limit!r}" for path in outside])


def _walk(folder: Path) -> Iterator[Path]:
    for parent, children, files in os.walk(folder):
        children[:] = sorted(child for child in children if not child.startswith("."))
        for file in sorted(files):
            if not file.startswith(".") and Path(file).suffix.lower() in SUFFIXES:
                yield Path(parent) / file


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise InputError(f"The list {str(path)!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{str(path)!r} is not a text file of paths ({error.reason}). To classify one image, use captune predict."
        ) from error
    return [line for line in lines if line.strip()]


def _shorten(entries: Sequence[str]) -> list[str]:
    rest = len(entries) - MOST_SHOWN
    return [*entries[:MOST_SHOWN], *([f"and {rest} more"] if rest > 0 else [])]


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".parquet")


def _normal(path: Path) -> str:
    return os.path.normcase(os.path.realpath(path))
