"""What a partition is made from: cutting an input of any size, and opening the images of one partition."""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.errors import InputError, raise_all
from captune.data.decoding import UnreadableImageError
from captune.data.images import PATH_COLUMNS, ImageCollection, walk
from captune.data.inputs import IMAGE_KEYS, MemoryImages
from captune.data.partition_folder import PartitionFolder, arrow, is_local, is_partition_folder, open_address
from captune.data.shards import SUFFIXES, is_shard, scan_shard
from captune.data.tables import first_few, read_columns, read_lines

Source = dict[str, Any]
"""One partition of a plan, as JSON: `kind` and where its images are."""


def cut(address: str, size: int, out: PartitionFolder) -> Iterator[Source]:
    """Yield the partitions of an input in a stable order; long lists of paths are written beside the plan.

    A partition has up to `size` images. It does not span tables or remote shards; those are partitions as a whole.
    """
    fs, path = open_address(address)
    name = path.lower()
    has_magic = any(sign in path for sign in "*?[")
    if not has_magic and not fs.exists(path):
        raise InputError(f"Nothing at {address!r}. Expected a folder, .tar shards, tables, a manifest or partitions.")
    if not has_magic and is_partition_folder(address):
        n_partitions = len(PartitionFolder(address).plan()["partitions"])
        yield from ({"kind": "partition", "folder": address, "number": number} for number in range(n_partitions))
    elif fs.isdir(path):
        yield from _cut_folder(fs, path, size, out)
    elif name.endswith(".parquet"):
        tables = sorted(fs.glob(path)) if has_magic else [path]
        yield from (part for table in tables for part in _cut_table(_full(fs, table), size))
    elif name.endswith(".tar"):
        yield from _cut_shards([_full(fs, shard) for shard in (sorted(fs.glob(path)) if has_magic else [path])], size)
    else:
        base = f"{os.path.dirname(path)}/"  # noqa: PTH120
        with _local_copy(address) as copy:
            rows = (row[0] for row in read_columns(copy, [PATH_COLUMNS])) if name.endswith(".csv") else read_lines(copy)
            entries = (entry.strip() for entry in rows)
            yield from _cut_names((e if "://" in e else _full(fs, os.path.join(base, e)) for e in entries), size, out)  # noqa: PTH118


def _full(fs: Any, path: str) -> str:  # noqa: ANN401
    """Return the address of a path of a file system; a local path stays one."""
    return path if is_local(fs) else str(fs.unstrip_protocol(path))


def _cut_folder(fs: Any, path: str, size: int, out: PartitionFolder) -> Iterator[Source]:  # noqa: ANN401
    shards = list[str]()

    def images() -> Iterator[str]:
        for name in walk(Path(path), defaultdict(list)) if is_local(fs) else _walk_store(fs, path):
            if is_shard(name):
                shards.append(_full(fs, f"{path}/{name}"))
            else:
                yield _full(fs, f"{path}/{name}")

    are_there = False
    for source in _cut_names(images(), size, out):
        are_there = True
        yield source
    if not are_there:  # next to images, a tar file is usually the archive they came from
        yield from _cut_shards(shards, size)


def _walk_store(fs: Any, path: str) -> Iterator[str]:  # noqa: ANN401
    for folder, folders, files in fs.walk(path):
        folders.sort() if isinstance(folders, list) else None
        inner = str(folder).removeprefix(path).strip("/")
        for name in sorted(files):
            if os.path.splitext(name)[1].lower() in SUFFIXES | {".tar"} and not name.startswith("."):  # noqa: PTH122
                yield f"{inner}/{name}" if inner else name


def _cut_names(names: Iterable[str], size: int, out: PartitionFolder) -> Iterator[Source]:
    remaining = iter(names)
    for number, chunk in enumerate(iter(lambda: list(islice(remaining, size)), [])):
        file = f"_lists/{number:06d}.json"
        out.write(file, json.dumps(chunk).encode("ascii"))
        yield {"kind": "files", "list": file, "count": len(chunk)}


def _cut_shards(shards: Sequence[str], size: int) -> Iterator[Source]:
    """Cut local shards by their headers, across shards; a remote shard is a partition, because it is read whole."""
    slices, count, damaged = list[dict[str, Any]](), 0, list[str]()
    for shard in shards:
        if "://" in shard:
            yield {"kind": "shards", "slices": [{"shard": shard, "header": 0, "count": None}]}
            continue
        slices.append({"shard": shard, "header": 0, "count": 0})
        try:
            for member, problem in scan_shard(Path(shard)):
                if problem:
                    raise InputError(f"{member.name!r} in {shard!r} {problem}.")
                if count == size:
                    yield {"kind": "shards", "slices": slices, "count": count}
                    slices, count = [{"shard": shard, "header": member.header, "count": 0}], 0
                slices[-1]["count"] += 1
                count += 1
        except InputError as error:
            damaged.append(str(error))
        slices = [part for part in slices if part["count"]]
    raise_all(first_few(damaged), "Cannot use these shards")
    if count:
        yield {"kind": "shards", "slices": slices, "count": count}


def _cut_table(address: str, size: int) -> Iterator[Source]:
    """Cut a table by rows; its images are a column of files as bytes or, without one, of paths."""
    with _local_copy(address) as copy:
        try:
            facts = arrow("parquet").read_metadata(copy)
        except (arrow().ArrowException, OSError) as error:
            raise InputError(f"The table {address!r} is not a readable Parquet file: {error}.") from error
    types = {field.name: str(field.type).partition("<")[0] for field in facts.schema.to_arrow_schema()}
    lowered = {name.lower(): name for name in types}
    known = [lowered[name] for name in (*IMAGE_KEYS, "bytes", *PATH_COLUMNS) if name in lowered]
    with_bytes = [name for name in known if types[name] in ("struct", "binary", "large_binary")]
    columns = [*with_bytes, *(name for name in known if types[name] in ("string", "large_string"))]
    if not columns:
        raise InputError(f"No images in the table {address!r}: expected a column such as 'image' (bytes) or 'path'.")
    for first in range(0, facts.num_rows, size):
        count = min(size, facts.num_rows - first)
        yield {"kind": "table", "table": address, "column": columns[0], "first": first, "count": count}


@contextmanager
def open_source(source: Source, out: PartitionFolder) -> Iterator[tuple[ImageCollection, list[str]]]:
    """Open the images of one partition and their names; what is remote and read in place is copied meanwhile."""
    if source["kind"] == "files":
        names = out.read_json(source["list"])
        if names is None:
            raise InputError(f"{source['list']!r} is missing in {out.address!r}. Start again with another --out.")
        yield _files(names), names
    elif source["kind"] == "table":
        with _local_copy(source["table"]) as copy:
            rows = _TableRows(copy, source["column"], source["first"], source["count"])
            if isinstance(rows[0], str):
                base = os.path.dirname(source["table"])  # noqa: PTH120
                names = [entry if "://" in entry else os.path.join(base, entry) for entry in rows]  # noqa: PTH118
                yield _files(names), names
            else:
                yield MemoryImages(rows), [f"{source['table']}/{source['first'] + i}" for i in range(len(rows))]
    else:
        with ExitStack() as stack:
            files, names, where = list[str](), list[str](), list[tuple[int, int, int]]()
            for part in source["slices"]:
                shard = stack.enter_context(_local_copy(part["shard"]))
                for member, problem in islice(scan_shard(shard, part["header"]), part["count"]):
                    if problem:
                        raise InputError(f"{member.name!r} in {part['shard']!r} {problem}.")
                    files.append(f"{shard}/{member.name}")
                    names.append(f"{part['shard']}/{member.name}")
                    where.append((len(str(shard)), member.offset, member.size))
            yield ImageCollection(files, Path(), where=np.asarray(where, dtype=np.int64).reshape(-1, 3)), names


def _files(names: Sequence[str]) -> ImageCollection:
    is_remote = any("://" in name for name in names)
    return MemoryImages(_Remote(names)) if is_remote else ImageCollection(names, Path())


class _Remote(list[str]):
    """Files in object stores, read one by one."""

    def __getitem__(self, row: Any) -> Any:  # noqa: ANN401
        fs, path = open_address(super().__getitem__(row))
        try:
            return path if is_local(fs) else fs.cat_file(path)
        except FileNotFoundError:
            raise UnreadableImageError("no such file or directory") from None


class _TableRows(Sequence[Any]):
    """Consecutive rows of one column of a Parquet table; one row group at a time is in memory."""

    def __init__(self, table: Path, column: str, first: int, count: int) -> None:
        self._table, self._column, self._first, self._count = table, column, first, count
        facts = arrow("parquet").read_metadata(table)
        self._ends = np.cumsum([facts.row_group(group).num_rows for group in range(facts.num_row_groups)])
        self._group, self._rows = -1, None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: Any) -> Any:  # noqa: ANN401
        if row >= self._count:
            raise IndexError(row)  # which ends a loop over the rows
        group = int(np.searchsorted(self._ends, self._first + row, side="right"))
        if group != self._group:
            with arrow("parquet").ParquetFile(self._table) as file:
                self._group, self._rows = group, file.read_row_group(group, columns=[self._column]).column(0)
        assert self._rows is not None
        return self._rows[self._first + row - int(self._ends[group])].as_py()  # counted from the end of the group


@contextmanager
def _local_copy(address: str) -> Iterator[Path]:
    """Return a local path as it is, and a copy of a remote file that is deleted afterward."""
    fs, path = open_address(address)
    if is_local(fs):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="captune-") as folder:
        copy = Path(folder) / Path(path).name
        try:
            fs.get_file(path, str(copy))
        except Exception as error:  # every store has errors of its own
            raise InputError(f"{address!r} cannot be read: {error}.") from error
        yield copy
