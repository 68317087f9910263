"""A job: what to compute, the plan that cuts it into partitions, the engines that compute them, what is finished."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from captune.core.errors import CaptuneError, InputError, RunFolderError, import_extra, raise_all
from captune.core.files import drop_leftovers, write_whole
from captune.core.runtime import SECONDS_BETWEEN_LINES, duration, say
from captune.core.settings import DEFAULT_BACKBONE
from captune.data.partition_folder import FORMAT, PLAN, VERSION, Finished, PartitionFolder, part_name
from captune.partitions.sources import Source, cut

if TYPE_CHECKING:
    from captune.partitions.worker import Worker

ARRAY, COLLECT = "_slurm-array.sh", "_slurm-collect.sh"
OPTIONS = "_slurm-options.txt"
"""Lines for the head of both scripts, such as `#SBATCH --partition=gpu`, if the file is in the folder."""
_worker: Worker | None = None


@dataclass(frozen=True)
class Job:
    """What is computed for every image, and from which input: images, or partitions with embeddings.

    The model is the id of a backbone or the path of a run; `decoders` are the decoding processes of one worker.
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
        given = {name: getattr(self, name) for name in ("partition_size", "batch_size", "top_k", "decoders")}
        wrong = {name: value for name, value in given.items() if value < (name != "decoders")}
        raise_all((f"{name} is {value}, expected more" for name, value in wrong.items()), "Cannot start this job")


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

    def absolute(place: str) -> str:  # every worker must find the input and the run, wherever it is started
        return place if "://" in place else os.path.abspath(place)  # noqa: PTH100

    job = replace(job, input=absolute(job.input), model=job.model if job.task == "embed" else absolute(job.model))
    if folder.read(PLAN) is not None:
        known, partitions = read_plan(folder)
        now, may_differ = asdict(job), ("accelerator", "decoders")
        changed = [(name, value) for name, value in asdict(known).items() if now[name] != value]
        listed = (f"{name} is {value!r} there, {now[name]!r} now" for name, value in changed if name not in may_differ)
        raise_all(listed, f"{folder.address!r} has partitions of another job; use another --out")
        return partitions
    partitions = list(cut(job.input, job.partition_size, folder))
    if not partitions:
        raise InputError(f"No images in {job.input!r}: expected images, .tar shards, Parquet tables or a manifest.")
    plan = {"format": FORMAT, "version": VERSION, "job": asdict(job), "partitions": partitions}
    folder.write(PLAN, json.dumps(plan, indent=1).encode("ascii"))
    return partitions


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
    failed, computed, n_done = dict[int, str](), 0, 0
    last, images, seconds = time.monotonic(), 0, 0.0
    n_workers = max(1, min(workers, len(pending)))
    where = f"{n_workers} worker{'s' if n_workers > 1 else ''}"
    for outcome in ENGINES[engine](folder.address, pending, workers) if pending else ():
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
        listed = "".join(f"\n  - {part_name(number)}: {problem}" for number, problem in sorted(failed.items())[:5])
        heading = f"{len(failed)} of {len(partitions)} partitions failed"
        raise CaptuneError(f"{heading}:{listed}\nThe others are finished; run the same command again for the rest.")
    return {**summarize(folder), "computed": computed}


def compute_locally(out: str, pending: Sequence[int], workers: int) -> Iterator[Outcome]:
    """Yield outcomes of processes that load the model once each; one worker is this process itself."""
    if workers == 1:
        from captune.partitions.worker import Worker

        yield from map(Worker(out).run, pending)
        return
    context = multiprocessing.get_context("spawn")
    ranks: Any = context.SimpleQueue()
    for rank in range(workers):
        ranks.put(rank)
    with ProcessPoolExecutor(workers, context, _start, (out, ranks)) as pool:
        waiting = [pool.submit(_run, number) for number in pending]
        try:
            yield from (future.result() for future in as_completed(waiting))
        except BrokenProcessPool as error:
            reason = "A worker was killed, or could not load the model; memory may have run out"
            raise CaptuneError(f"{reason}. Run the same command again, maybe with fewer workers.") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _start(out: str, ranks: Any) -> None:  # noqa: ANN401
    global _worker  # noqa: PLW0603 (the state of a worker process)
    threading.Thread(target=_end_with_driver, daemon=True).start()
    rank = ranks.get()
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        import torch

        if torch.cuda.device_count() > 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(rank % torch.cuda.device_count())
    from captune.partitions.worker import Worker

    _worker = Worker(out)


def _end_with_driver() -> None:
    """End this worker when the process that started it is killed, which would leave it waiting forever."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


def _run(number: int) -> Outcome:
    assert _worker is not None
    return _worker.run(number)


def compute_on_slurm(out: str, pending: Sequence[int], workers: int) -> Iterator[Outcome]:
    """Write the scripts of an array job and of one that collects, and submit both; yield no outcomes."""
    folder = PartitionFolder(out)
    if not folder.is_local:
        raise InputError(f"{out!r} is not a folder: the scripts of Slurm need a shared file system.")
    options = (folder.read(OPTIONS) or b"").decode()
    n_tasks = min(workers, len(pending))
    command = f"{shlex.quote(sys.executable)} -m captune.partitions {shlex.quote(out)}"
    head = f"#!/bin/sh\n#SBATCH --job-name=captune\n#SBATCH --output={out}/_slurm-%A-%a.log\n{options}"
    task = f"#SBATCH --array=0-{n_tasks - 1}\nexec {command} --task $SLURM_ARRAY_TASK_ID --of {n_tasks}\n"
    write_whole(Path(out) / ARRAY, head + task)
    write_whole(Path(out) / COLLECT, head + f"exec {command} --collect\n")
    submit = shutil.which("sbatch")
    if submit is None:
        say(f"No sbatch here. Submit {ARRAY} in {out!r} with sbatch, then {COLLECT} with --dependency=afterany:ID.")
        return

    def run(*options: str) -> str:
        command = [submit, "--parsable", *options]
        done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CaptuneError(f"sbatch refused {options[-1]!r}: {done.stderr.strip() or done.stdout.strip()}.")
        return done.stdout.strip().split(";")[0]

    number = run(ARRAY)
    run(f"--dependency=afterany:{number}", COLLECT)
    say(f"Submitted as job {number} with {n_tasks} tasks; {COLLECT} follows and tells what is missing.")
    yield from ()


def compute_on_ray(out: str, pending: Sequence[int], workers: int) -> Iterator[Outcome]:
    """Yield outcomes of actors; each loads the model once, and gets its next partition when it has finished one."""
    ray = import_extra("ray", "ray")
    from captune.partitions.worker import Worker

    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False, include_dashboard=False)
    has_devices = bool(ray.cluster_resources().get("GPU"))
    actor: Any = ray.remote(num_cpus=1, num_gpus=1 if has_devices else 0)(Worker)
    remaining = iter(pending)
    actors = [actor.remote(out) for _ in range(min(workers, len(pending)))]
    running = {one.run.remote(number): (one, number) for one, number in zip(actors, remaining, strict=False)}
    lost = list[int]()
    while running:
        (ready,), _ = ray.wait(list(running), num_returns=1)
        one, number = running.pop(ready)
        try:
            yield ray.get(ready)
        except ray.exceptions.RayActorError:  # the actor was killed, so its next partitions go to the others
            lost.append(number)
            continue
        following = next(remaining, None)
        if following is not None:
            running[one.run.remote(following)] = (one, following)
    for number in (*lost, *remaining):
        yield Outcome(number, problem="its worker was killed; memory may have run out")


ENGINES = {"local": compute_locally, "slurm": compute_on_slurm, "ray": compute_on_ray}
