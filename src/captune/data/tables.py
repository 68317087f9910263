"""Columns of CSV and Parquet tables and lines of text files, read row by row: a table is never held."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from captune.core.errors import InputError, missing_extra, raise_all

MOST_SHOWN = 10
ROWS_AT_ONCE = 1 << 16


class Tally:
    """Problems of a kind: the first few in words, the others as a number."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, problem: str) -> None:
        """Note one more problem."""
        self._count += 1
        if self._count <= MOST_SHOWN:
            self._first.append(problem)

    def shown(self) -> list[str]:
        """Return what a message lists."""
        rest = self._count - MOST_SHOWN
        return [*self._first, *([f"and {rest} more"] if rest > 0 else [])]


def shorten(entries: Sequence[str]) -> list[str]:
    """Return the first few entries and how many more there are."""
    tally = Tally()
    for entry in entries:
        tally.add(entry)
    return tally.shown()


def is_table(path: Path) -> bool:
    """Return whether a file is a table and not a plain list."""
    return path.suffix.lower() in (".csv", ".parquet")


def read_columns(path: Path, wanted: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yield some columns of a CSV or Parquet table, each found by the first of its wanted names."""
    rows = _parquet(path, wanted) if path.suffix.lower() == ".parquet" else _csv(path)
    header = next(rows, [])
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
    short, last = Tally(), max(columns)
    for number, row in enumerate(rows, start=2):
        if len(row) <= last:
            short.add(str(number))
        else:
            yield tuple(row[column] for column in columns)
    if short:
        raise InputError(f"The table {str(path)!r} has too few columns in line {', '.join(short.shown())}.")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file that are not empty."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line in file:
                if line.strip():
                    yield line
    except OSError as error:
        raise InputError(f"The list {str(path)!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{str(path)!r} is not a text file of paths ({error.reason}). To classify one image, use captune predict."
        ) from error


def _csv(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.reader(file):
                if row:
                    yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The table {str(path)!r} is not a readable UTF-8 CSV file: {error}.") from error


def _parquet(path: Path, wanted: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "parquet") from error
    accepted = {name for options in wanted for name in options}
    try:
        with parquet.ParquetFile(path) as file:
            header = [name for name in file.schema_arrow.names if name.strip().lower() in accepted]
            yield header
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=header):
                columns = [["" if value is None else str(value) for value in column.to_pylist()] for column in batch]
                yield from (list(row) for row in zip(*columns, strict=True))
    except (arrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:  # damaged in any way
        raise InputError(f"The table {str(path)!r} is not a Parquet file: {error}.") from error
