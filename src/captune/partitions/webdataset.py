"""Partitions as WebDataset shards: a tar file for each, with `.npy` and `.json` files of every readable image."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.errors import RunFolderError
from captune.data.partition_folder import PartitionFolder, part_name


def write_shards(address: str, out: str | Path) -> list[Path]:
    """Write one shard for each finished partition and return their paths."""
    folder, target = PartitionFolder(address), PartitionFolder(out)
    written = []
    for number in range(len(folder.plan()["partitions"])):
        if not folder.is_done(number):
            raise RunFolderError(f"{part_name(number)!r} in {address!r} is not finished. Run the same command again.")
        name = part_name(number).replace(".parquet", ".tar")
        target.write(name, _shard(folder.read_table(number).to_pylist(), number))
        written.append(Path(out) / name)
    return written


def _shard(rows: list[dict[str, Any]], number: int) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for position, row in enumerate(rows):
            vector = row.pop("embedding", None)
            if row["status"] != "ok":
                continue
            files = {"json": json.dumps(row).encode()}
            if vector is not None:
                array = io.BytesIO()
                np.save(array, np.asarray(vector, dtype=np.float32))
                files["npy"] = array.getvalue()
            for suffix, part in files.items():
                entry = tarfile.TarInfo(f"{number:06d}-{position:06d}.{suffix}")
                entry.size = len(part)
                tar.addfile(entry, io.BytesIO(part))
    return content.getvalue()
