"""A job: what to compute, cut into partitions by a plan file; how much is finished, also as WebDataset shards."""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from captune.core.errors import InputError, RunFolderError, raise_all
from captune.core.settings import DEFAULT_BACKBONE
from captune.data.partition_folder import FORMAT, PLAN, VERSION, Finished, PartitionFolder, part_name
from captune.partitions.sources import Source, cut


@dataclass(frozen=True)
class Job:
    """What is computed for every image, and from which input.

    Attributes:
        task: `embed` or `predict`.
        input: Path or address of the images, or of partitions with embeddings.
        model: Id of the backbone, or path of the run.
        partition_size: Most images of one partition.
        batch_size: Images that are encoded at once.
        top_k: Classes of each prediction.
        accelerator: Device type.
        precision: Precision of the encoder.
        decoders: Processes that decode images for one worker.
    """

    task: Literal["embed", "predict"]
    input: str
    model: str = DEFAULT_BACKBONE
    partition_size: int = 10_000
    batch_size: int = 32
    top_k: int = 1
    accelerator: str = "auto"
    precision: str = "32-true"
    decoders: int = 0

    def __post_init__(self) -> None:
        least = {"partition_size": 1, "batch_size": 1, "top_k": 1, "decoders": 0}
        wrong = [name for name, bound in least.items() if getattr(self, name) < bound]
        listed = (f"{name} is {getattr(self, name)}, expected at least {least[name]}" for name in wrong)
        raise_all(listed, "Cannot start this job")


class Outcome(NamedTuple):
    """What became of one partition: its sidecar, or why it failed; `was_done` if another worker was faster."""

    number: int
    finished: Finished | None = None
    problem: str = ""
    was_done: bool = False


def read_plan(folder: PartitionFolder) -> tuple[Job, list[Source]]:
    """Return the job of a folder and its partitions."""
    plan = folder.plan()
    return Job(**plan["job"]), plan["partitions"]


def make_plan(job: Job, folder: PartitionFolder) -> list[Source]:
    """Return the partitions of a job; an existing plan must be of the same job and is kept."""
    # Every worker must find the input and the run, whatever its working directory is.
    job = replace(job, input=_absolute(job.input), model=job.model if job.task == "embed" else _absolute(job.model))
    if folder.read(PLAN) is not None:
        known, partitions = read_plan(folder)
        changed = [
            f"{name} is {value!r} there, {asdict(job)[name]!r} now"
            for name, value in asdict(known).items()
            if name not in ("accelerator", "decoders") and asdict(job)[name] != value
        ]
        raise_all(changed, f"{folder.address!r} has partitions of another job; use another --out")
        return partitions
    partitions = list(cut(job.input, job.partition_size, folder))
    if not partitions:
        raise InputError(f"No images in {job.input!r}: expected images, .tar shards, Parquet tables or a manifest.")
    plan = {"format": FORMAT, "version": VERSION, "job": asdict(job), "partitions": partitions}
    folder.write(PLAN, json.dumps(plan, indent=1).encode("ascii"))
    return partitions


def _absolute(place: str) -> str:
    return place if "://" in place else os.path.abspath(place)  # noqa: PTH100


def summarize(folder: PartitionFolder) -> dict[str, Any]:
    """Return the size of a job and how much of it is finished, from the sidecars."""
    _, partitions = read_plan(folder)
    found = [facts for facts in map(folder.finished, range(len(partitions))) if facts is not None]
    seconds = sum(facts.seconds for facts in found)
    return {
        "partitions": len(partitions),
        "finished": len(found),
        "images": sum(facts.images for facts in found),
        "skipped": sum(facts.images - facts.readable for facts in found),
        "worker_seconds": round(seconds, 1),
        "worker_seconds_left": round(seconds / max(len(found), 1) * (len(partitions) - len(found)), 1),
    }


def write_shards(address: str, out: str | Path) -> list[Path]:
    """Write each partition as a WebDataset shard, with `.npy` and `.json` files of every readable image."""
    folder, target = PartitionFolder(address), PartitionFolder(out)
    written = []
    for number in range(len(folder.plan()["partitions"])):
        if not folder.is_done(number):
            raise RunFolderError(f"{part_name(number)!r} in {address!r} is not finished. Run the same command again.")
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            for position, row in enumerate(folder.read_table(number).to_pylist()):
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
        written.append(Path(out) / part_name(number).replace(".parquet", ".tar"))
        target.write(written[-1].name, content.getvalue())
    return written
