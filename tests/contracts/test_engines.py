"""Whatever computes partitions, and however it was interrupted, the same bytes come out, and nothing is done twice."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from partition_jobs import MODEL, contents, image_files, install_sbatch, n_finished, write_shards

from captune.core.errors import CaptuneError
from captune.data.partition_folder import PartitionFolder
from captune.partitions.job import ENGINES, Job, make_plan, run_job

pytest.importorskip("pyarrow")
N_IMAGES, SIZE, N_PARTITIONS, N_OF_SHARD = 240, 20, 12, 4
MARK, WORKERS = "CAPTUNE_JOB", (b"spawn_main", b"--task")
ENGINE_CASES = [pytest.param(name, marks=() if name == "local" else pytest.mark.slow) for name in ENGINES]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = image_files(N_IMAGES - 1) | {"damaged.png": b"no image"}
    return write_shards(tmp_path_factory.mktemp("input") / "shards", files)


@pytest.fixture(scope="module")
def expected(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("one") / "out"
    found = run_job(job(shards), str(out), workers=1, quiet=True)
    assert (found["partitions"], found["images"], found["skipped"]) == (N_PARTITIONS, N_IMAGES, 1)
    return contents(out)


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "ray":
        ray: Any = pytest.importorskip("ray")
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray's 15 would starve actors on a busy machine
    monkeypatch.setenv("PATH", install_sbatch(tmp_path / "bin"))
    yield request.param
    if request.param == "ray":
        ray.shutdown()


def job(shards: Path) -> Job:
    return Job("embed", str(shards), MODEL, partition_size=SIZE, accelerator="cpu")


@pytest.mark.parametrize("engine", ENGINE_CASES, indirect=True)
def test_two_workers_write_the_bytes_of_one_and_repair_what_is_damaged(
    engine: str, shards: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_job(job(shards), str(out), engine, workers=2, quiet=True)
    assert contents(out) == expected
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    damaged = out / "part-000001.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"123456789")
    (out / "_part-000003.json").unlink()
    (out / "part-000004.parquet").unlink()
    run_job(job(shards), str(out), engine, workers=2, quiet=True)
    assert contents(out) == expected
    again = {path.name for path in out.glob("*.parquet") if path.stat().st_mtime_ns != before[path.name]}
    assert again == {f"part-{number:06d}.parquet" for number in (1, 3, 4)}


@pytest.mark.parametrize("engine", ENGINE_CASES, indirect=True)
def test_an_unreadable_shard_fails_alone(engine: str, shards: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out, last = tmp_path / "out", shards / "2.tar"
    make_plan(job(shards), PartitionFolder(out))
    whole = last.read_bytes()
    last.write_bytes(whole[:700])
    try:
        if engine == "slurm":  # its tasks tell in their logs, and the collecting job tells how much is missing
            assert (
                run_job(job(shards), str(out), engine, workers=2, quiet=True)["finished"] == N_PARTITIONS - N_OF_SHARD
            )
        else:
            with pytest.raises(CaptuneError, match=r"2\.tar"):
                run_job(job(shards), str(out), engine, workers=2, quiet=True)
    finally:
        last.write_bytes(whole)
    assert n_finished(out) == N_PARTITIONS - N_OF_SHARD
    assert run_job(job(shards), str(out), workers=1, quiet=True)["computed"] == N_OF_SHARD
    assert contents(out) == expected


def start(shards: Path, out: Path, *options: str, most_bytes: int = 0) -> subprocess.Popen[bytes]:
    """Start a job, whose processes carry the folder as a mark in their environment."""
    command = [sys.executable, "-m", "captune", "embed", str(shards), "--out", str(out), "--backbone", MODEL]
    command += ["--partition-size", str(SIZE), "--accelerator", "cpu", *options]

    def limit() -> None:
        if most_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    environment = {**os.environ, MARK: str(out)}
    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, preexec_fn=limit, env=environment, **pipes)  # noqa: PLW1509


def workers_of(out: Path, kinds: tuple[bytes, ...] = WORKERS) -> list[int]:
    """Return the processes that compute partitions of a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_worker = any(kind in (process / "cmdline").read_bytes() for kind in kinds)
            if is_worker and f"{MARK}={out}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("victim", ["worker", "driver"])
@pytest.mark.parametrize("engine", ["local", "slurm"], indirect=True)
def test_a_kill_costs_only_what_was_being_computed(
    engine: str, victim: str, shards: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process, workers = start(shards, out, "--engine", engine, "--processes", "2"), list[int]()
    while not n_finished(out):
        workers = workers_of(out) or workers
        assert process.poll() is None
    os.kill(workers[0] if victim == "worker" else process.pid, signal.SIGKILL)
    told = b"" if engine == "slurm" and victim == "driver" else process.communicate(timeout=240)[1]
    if victim == "worker" and engine == "local":  # who submits to Slurm does not see its tasks
        assert process.returncode == 2
        assert b"killed" in told
    while workers_of(out, (*WORKERS, b"sbatch")):  # they end with their driver, or have computed everything
        time.sleep(0.05)
    process.wait(timeout=240)
    done = n_finished(out)
    assert victim == "driver" or done < N_PARTITIONS
    assert run_job(job(shards), str(out), quiet=True)["computed"] == N_PARTITIONS - done
    assert contents(out) == expected


def test_a_full_disk_is_told_and_the_rest_follows(shards: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    size = min(len(content) for content in expected.values())
    process = start(shards, out, "--processes", "1", most_bytes=size + 1)  # as on a disk that fills up
    _, told = process.communicate(timeout=240)
    assert process.returncode == 2
    assert b"cannot be written" in told
    done = n_finished(out)
    assert 0 < done < N_PARTITIONS
    assert not list(out.glob(".captune-*"))
    assert run_job(job(shards), str(out), quiet=True)["computed"] == N_PARTITIONS - done
    assert contents(out) == expected
