"""Where the images are: folders, manifests and lists, resolved to one ordered collection."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from captune.arrays import Ints
from captune.errors import InputError, missing_extra, raise_all

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
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.as_posix()

    @property
    def fingerprint(self) -> str:
        """Return a digest of every name and file size, so that a run records which data it saw."""
        digest = hashlib.blake2b(digest_size=16)
        for position, path in enumerate(self.paths):
            size = path.stat().st_size if path.exists() else -1
            digest.update(f"{self.name(position)}\0{size}\n".encode())
        return digest.hexdigest()


def find_images(source: str | Path, root: str | Path | None = None) -> ImageCollection:
    """Collect images from a folder (recursively), a CSV/Parquet manifest or a text file of paths.

    Manifest paths are resolved against the manifest's folder; with `root` given, none may lead outside it.
    """
    path = Path(source)
    if path.is_dir():
        return ImageCollection(tuple(_walk(path)), path)
    if not path.is_file():
        raise InputError(
            f"No images at {str(source)!r}: it is neither a folder nor a file. Expected a folder of images, a "
            "CSV or Parquet manifest with a 'path' column, or a text file with one path a line."
        )
    entries = read_column(path, PATH_COLUMNS) if _is_table(path) else _lines(path)
    return _resolve(entries, path, root)


def read_labels(source: str | Path, images: ImageCollection, names: Sequence[str]) -> Ints:
    """Return the class id of every image, -1 where none is given, from `folders` or a CSV/Parquet table."""
    class_ids = {name: i for i, name in enumerate(names)}
    if str(source) == "folders":
        given = {i: path.parent.name for i, path in enumerate(images.paths)}
    else:
        given = dict(_table_labels(Path(source), images))
    labels = np.full(len(images), -1, dtype=np.int64)
    problems: dict[str, int] = {}
    for position, name in given.items():
        if name in class_ids:
            labels[position] = class_ids[name]
        elif name:
            problems[name] = problems.get(name, 0) + 1
    unknown = [f"{name!r} ({count} images)" for name, count in sorted(problems.items())]
    listed = unknown[:MOST_SHOWN] + ([f"and {len(unknown) - MOST_SHOWN} more"] if len(unknown) > MOST_SHOWN else [])
    raise_all(listed, f"Labels that name no class (classes: {', '.join(names[:MOST_SHOWN])}…)")
    return labels


def read_column(path: Path, wanted: Sequence[str]) -> list[str]:
    """Return one column of a CSV or Parquet table, found by the first of the wanted names that it has."""
    return [row[0] for row in _read_columns(path, [wanted])]


def _table_labels(path: Path, images: ImageCollection) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise InputError(f"No labels at {str(path)!r}: expected 'folders' or a CSV/Parquet table (path, label).")
    positions = {_normal(image): i for i, image in enumerate(images.paths)}
    strays = []
    for entry, label in _read_columns(path, [PATH_COLUMNS, LABEL_COLUMNS]):
        candidates = (_normal(path.parent / entry), _normal(images.root / entry))
        position = next((positions[c] for c in candidates if c in positions), None)
        if position is None:
            strays.append(entry)
        else:
            yield position, label.strip()
    if strays:
        raise InputError(
            f"{len(strays)} labeled paths in {str(path)!r} are not among the images, first {strays[0]!r}. Paths are "
            f"resolved against the table's folder or {str(images.root)!r}."
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
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The table {str(path)!r} is not a UTF-8 CSV file: {error}.") from error
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
    base = manifest.parent
    limit = Path(os.path.realpath(root)) if root is not None else None
    paths = [base / entry.strip() for entry in entries]
    problems = [f"row {i + 1} has an empty path" for i, path in enumerate(paths) if path == base]
    if limit is not None:
        outside = [str(p) for p in paths if not Path(os.path.realpath(p)).is_relative_to(limit)]
        problems += [f"{path!r} leads outside {str(limit)!r}" for path in outside[:MOST_SHOWN]]
    seen: set[Path] = set()
    repeated = [path for path in paths if path in seen or seen.add(path)]  # type: ignore[func-returns-value]
    problems += [f"{str(path)!r} is listed more than once" for path in repeated[:MOST_SHOWN]]
    raise_all(problems, f"The manifest {str(manifest)!r} cannot be used")
    return ImageCollection(tuple(paths), limit if limit is not None else base)


def _walk(folder: Path) -> Iterator[Path]:
    for parent, children, files in os.walk(folder):
        children[:] = sorted(child for child in children if not child.startswith("."))
        for file in sorted(files):
            if not file.startswith(".") and Path(file).suffix.lower() in SUFFIXES:
                yield Path(parent) / file


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{str(path)!r} is not a text file of paths ({error.reason}). To classify one image, use captune predict."
        ) from error
    return [line for line in lines if line.strip()]


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".parquet")


def _normal(path: Path) -> str:
    return os.path.normcase(os.path.realpath(path))
