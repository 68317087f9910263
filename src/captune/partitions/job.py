"""A job: what to compute, cut into partitions by a plan file; what is finished is not computed again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from captune.core.errors import CaptuneError, InputError, raise_all
from captune.core.files import drop_leftovers
from captune.core.progress import SECONDS_BETWEEN_LINES, duration, say
from captune.core.settings import DEFAULT_BACKBONE
from captune.data.partition_folder import FORMAT, PLAN, VERSION, Finished, PartitionFolder, part_name
from captune.partitions.sources import Source, cut

ENGINES = ("local", "slurm", "ray")
"""Modules in the folder engines."""


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


def run_job(job: Job, out: str, engine: str = "local", workers: int = 1, quiet: bool = False) -> dict[str, Any]:
    """Compute all partitions that are not finished; return how many there are, and how many were computed."""
    tell: Callable[[str], None] = (lambda _: None) if quiet else say
    folder = PartitionFolder(out)
    partitions = make_plan(job, folder)
    if folder.is_local:
        drop_leftovers(Path(folder.path))  # of killed workers
    pending = [number for number in range(len(partitions)) if not folder.is_done(number)]
    if len(pending) < len(partitions):
        tell(f"{len(partitions) - len(pending)} of {len(partitions)} partitions are finished.")
    compute = import_module(f"captune.partitions.engines.{engine}").compute
    failed, computed, n_done = dict[int, str](), 0, 0
    last, images, seconds = time.monotonic(), 0, 0.0
    n_workers = max(1, min(workers, len(pending)))
    where = f"{n_workers} worker{'s' if n_workers > 1 else ''}"
    for outcome in compute(folder.address, pending, workers) if pending else ():
        n_done, now = n_done + 1, time.monotonic()
        if outcome.finished is None:
            failed[outcome.number] = outcome.problem
        else:
            computed += not outcome.was_done
            images, seconds = images + outcome.finished.images, seconds + outcome.finished.seconds
        if n_done in (1, n_workers, len(pending)) or now - last > SECONDS_BETWEEN_LINES:
            left = duration(seconds / n_done * (len(pending) - n_done) / n_workers)  # from what the first ones took
            rate = images / max(seconds, 1e-9) * n_workers
            tell(f"{n_done} of {len(pending)} partitions, {rate:,.0f} images/s, {left} left on {where}.")
            last = now
    if failed:
        listed = [f"{part_name(number)}: {problem}" for number, problem in sorted(failed.items())[:5]]
        raise CaptuneError(
            "\n  - ".join([f"{len(failed)} of {len(partitions)} partitions failed:", *listed])
            + "\nThe others are finished; run the same command again for the rest."
        )
    return {**summarize(folder), "computed": computed}


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
