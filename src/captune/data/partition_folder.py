"""A folder of partitions, local or in an object store: Parquet files that `captune embed` and `predict` write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captune.core.arrays import Floats, empty_rows
from captune.core.errors import CaptuneError, InputError, MissingExtraError, RunFolderError, import_extra
from captune.core.files import digest, is_file, write_whole

FORMAT, VERSION = "captune-partitions", 1
PLAN = "_partitions.json"
"""Names with an underscore are not data for pyarrow, pandas and others that open a whole folder."""
MOST_ROWS = 1_000_000
"""Rows that are adapted to; a larger folder is sampled."""


class Finished(NamedTuple):
    """What the sidecar of a finished partition records."""

    digest: str
    images: int
    readable: int
    width: int
    seconds: float


class PartitionFolder:
    """Files below one address, each written whole: renamed on a file system, one put in an object store."""

    def __init__(self, address: str | Path) -> None:
        self.address = str(address).rstrip("/")
        self.fs, self.path = open_address(self.address)
        self.is_local = is_local(self.fs)

    def write(self, name: str, content: bytes) -> None:
        """Write a file that others see either whole or not at all."""
        if self.is_local:
            write_whole(Path(self.path) / name, content)
            return
        try:
            self.fs.pipe_file(f"{self.path}/{name}", content)
        except Exception as error:  # every store has errors of its own
            raise CaptuneError(f"{name!r} cannot be written to {self.address!r}: {error}.") from error

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None without it."""
        try:
            return bytes(self.fs.cat_file(f"{self.path}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            raise CaptuneError(f"{name!r} cannot be read from {self.address!r}: {error}.") from error

    def read_json(self, name: str) -> Any:  # noqa: ANN401
        """Return the content of a JSON file, None without it or if it is damaged."""
        content = self.read(name)
        with suppress(ValueError):
            return None if content is None else json.loads(content)

    def plan(self) -> dict[str, Any]:
        """Return the plan, or raise an error without one."""
        plan = self.read_json(PLAN)
        if not isinstance(plan, dict) or plan.get("format") != FORMAT or plan.get("version", 0) > VERSION:
            raise RunFolderError(f"No partitions at {self.address!r}: expected a {PLAN} that captune embed wrote.")
        return plan

    def finished(self, number: int) -> Finished | None:
        """Return the sidecar of a partition, None if it is not finished; the partition itself is not read."""
        with suppress(TypeError):  # it is missing or damaged
            return Finished(**self.read_json(sidecar_name(number)))
        return None

    def is_done(self, number: int) -> bool:
        """Return whether a partition is there and matches the digest in its sidecar."""
        facts = self.finished(number)
        return facts is not None and digest(self.read(part_name(number)) or b"") == facts.digest

    def read_table(self, number: int, columns: Sequence[str] | None = None) -> Any:  # noqa: ANN401 (pyarrow's Table)
        """Return a finished partition, or some of its columns."""
        name = part_name(number)
        try:
            return arrow("parquet").read_table(arrow().BufferReader(self.read(name) or b""), columns=columns)
        except arrow().ArrowException as error:
            problem = f"{name!r} in {self.address!r} is missing or damaged: {error}"
            raise RunFolderError(f"{problem}. Run the same command again.") from error


def part_name(number: int) -> str:
    """Return the name of a partition."""
    return f"part-{number:06d}.parquet"


def sidecar_name(number: int) -> str:
    """Return the name of the file with the digest of a partition."""
    return f"_part-{number:06d}.json"


def is_partition_folder(path: str | Path) -> bool:
    """Return whether there is a plan in a folder."""
    return PartitionFolder(path).read(PLAN) is not None if "://" in str(path) else is_file(Path(path) / PLAN)


def read_sample(address: str | Path) -> tuple[Floats, list[str], int]:
    """Return embeddings and paths of the images of a folder, or of a random sample, and how many it has."""
    folder = PartitionFolder(address)
    found = [folder.finished(number) for number in range(len(folder.plan()["partitions"]))]
    missing = [number for number, facts in enumerate(found) if facts is None]
    if missing or not found:
        problem = f"{len(missing)} of {len(found)} partitions in {folder.address!r} are not finished"
        raise InputError(f"{problem}, the first is {part_name(missing[0] if missing else 0)}. Run captune embed again.")
    sizes, widths = [facts.readable for facts in found if facts], {facts.width for facts in found if facts} - {0}
    total = sum(sizes)
    if not total or len(widths) != 1:
        raise InputError(f"The partitions in {folder.address!r} have no embeddings. Make them with captune embed.")
    chosen = np.arange(total)
    if total > MOST_ROWS:
        chosen = np.sort(np.random.default_rng(0).choice(total, MOST_ROWS, replace=False))
    vectors, names = empty_rows(len(chosen), widths.pop()), list[str]()
    ends = np.cumsum([0, *sizes])
    for number, (first, last) in enumerate(pairwise(ends.tolist())):
        rows = chosen[np.searchsorted(chosen, first) : np.searchsorted(chosen, last)] - first
        if len(rows):
            paths, part = read_embeddings(folder, number)
            vectors[len(names) : len(names) + len(rows)] = part[rows]
            names += [paths[row] for row in rows.tolist()]
    return vectors, names, total


def read_embeddings(folder: PartitionFolder, number: int) -> tuple[list[str], Floats]:
    """Return the paths of the readable images of a partition and their embeddings."""
    table = folder.read_table(number, ["path", "status", "embedding"])
    readable = table.filter(arrow("compute").equal(table["status"], "ok"))
    column = readable["embedding"].combine_chunks()
    vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(len(readable), -1)
    return readable["path"].to_pylist(), np.array(vectors, dtype=np.float32)


def open_address(address: str) -> tuple[Any, str]:
    """Return the file system of a path or an address such as s3://bucket/folder, and the path there."""
    from fsspec.core import url_to_fs

    try:
        fs, path = url_to_fs(address)
    except ImportError as error:
        raise MissingExtraError(f"{address!r} needs one more package: {error}.") from error
    except ValueError as error:
        raise InputError(f"{address!r} is not an address that fsspec knows: {error}.") from error
    return fs, str(path).rstrip("/")


def is_local(fs: Any) -> bool:  # noqa: ANN401
    """Return whether a file system of fsspec is that of this machine."""
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def arrow(module: str = "") -> Any:  # noqa: ANN401
    """Return pyarrow or one of its modules, which is an optional dependency."""
    return import_extra(f"pyarrow.{module}" if module else "pyarrow", "parquet")
