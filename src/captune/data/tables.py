"""Columns of CSV and Parquet tables and lines of text files, read row by row so that any size fits in memory."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from captune.core.errors import InputError, import_extra, raise_all
from captune.core.text import shown

MOST_SHOWN = 10
ROWS_AT_ONCE = 1 << 16
MOST_IN_LINE = 1 << 20
"""Characters in one line of a text file: without a limit, a file without line ends would be read whole."""


def first_few(entries: Iterable[str], most: int = MOST_SHOWN) -> list[str]:
    """Return the first few entries and how many more there are."""
    listed = list(entries)
    return listed if len(listed) <= most else [*listed[:most], f"and {len(listed) - most} more"]


def is_table(path: Path) -> bool:
    """Return whether a file is a table rather than a plain list."""
    return path.suffix.lower() in (".csv", ".parquet")


def read_columns(path: Path, wanted: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yield some columns of a CSV or Parquet table; each column is given by the names it may have."""
    rows = _parquet(path, wanted) if path.suffix.lower() == ".parquet" else _csv(path)
    header = next(rows, [])
    lowered, found = [name.strip().lower() for name in header], ", ".join(first_few(header)) or "nothing"
    columns = [next((lowered.index(name) for name in options if name in lowered), -1) for options in wanted]
    missing = (wanted[i] for i, column in enumerate(columns) if column < 0)
    problems = (f"no {names[0]!r} column (accepted: {', '.join(names)}), found: {found}" for names in missing)
    raise_all(problems, f"Cannot use the table {str(path)!r}")
    short, last = list[str](), max(columns)
    for number, row in enumerate(rows, start=2):
        if len(row) <= last:
            short.append(str(number))
        else:
            yield tuple(row[column] for column in columns)
    if short:
        raise InputError(f"The table {str(path)!r} has too few columns in line {', '.join(first_few(short))}.")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the non-empty lines of a text file."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from (line for line in _lines(file, path) if line.strip())
    except OSError as error:
        raise InputError(f"Cannot read the list {str(path)!r}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        advice = "To classify one image, use captune predict; save embeddings as .npy, .npz or .safetensors"
        raise InputError(f"{str(path)!r} is not a text file ({error.reason}). {advice}.") from error


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    while line := file.readline(MOST_IN_LINE):
        if len(line) == MOST_IN_LINE:
            raise InputError(f"A line of {str(path)!r} has {MOST_IN_LINE:,} characters or more. Is this a text file?")
        yield line


def _csv(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from (row for row in csv.reader(_lines(file, path)) if row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The table {str(path)!r} is not a readable UTF-8 CSV file: {error}.") from error


def _parquet(path: Path, wanted: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    arrow, parquet = import_extra("pyarrow", "parquet"), import_extra("pyarrow.parquet", "parquet")
    accepted = {name for options in wanted for name in options}
    try:
        schema = parquet.read_schema(path)
        needed = [name for name in schema.names if name.strip().lower() in accepted]
        texts = text_columns(schema, needed)
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            yield schema.names
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=needed):
                read = {name: [_as_text(value, path) for value in values_of(batch[name])] for name in needed}
                columns = [read.get(name) or [""] * len(batch) for name in schema.names]
                yield from (list(row) for row in zip(*columns, strict=True))
    except (arrow.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise InputError(f"The table {str(path)!r} is not a readable Parquet file: {error}.") from error


def text_columns(schema: Any, names: Sequence[str]) -> list[str]:  # noqa: ANN401
    """Return the columns to read as dictionaries: a few bytes in a Parquet file may stand for terabytes of text."""
    return [name for name in names if str(schema.field(name).type) in ("string", "binary")]


def values_of(column: Any) -> list[Any]:  # noqa: ANN401
    """Return the values of an Arrow column; equal ones are one object if the file stores them once."""
    if not hasattr(column, "dictionary"):
        return column.to_pylist()
    known = column.dictionary.to_pylist()
    return [None if number is None else known[number] for number in column.indices.to_pylist()]


def _as_text(value: object, path: Path) -> str:
    """Return a value of a Parquet table as CSV would hold it; a whole number stays one, whatever its type."""
    if value is None or value != value:  # noqa: PLR0124 (NaN differs from itself)
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, (list, dict)):
        raise InputError(f"The table {str(path)!r} contains {shown(value)}, expected text or numbers.")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
