"""Runs a suite: finished cells are skipped, interrupted ones resumed, and failures do not stop the others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from captune.benchmark.cells import Cell, Results
from captune.benchmark.environment import Environment, commit
from captune.benchmark.measuring import INTERRUPTED, Job, clear_killed
from captune.core.errors import CaptuneError, InputError
from captune.core.files import drop_leftovers
from captune.core.launching import KEEP_FREED_MEMORY

LAUNCHER = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
SECONDS_TO_STOP = 120
"""How long an interrupted cell may take to finish its step and write its checkpoint."""
MESSAGES = {
    "interrupted": "resuming",
    "outdated": "measuring again because its file is damaged or its data, weights or settings have changed",
}
"""Messages by the state of a cell."""


@dataclass
class Tally:
    """Counts of measured and skipped cells, and the failed ones with their errors."""

    measured: int = 0
    skipped: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)


def shard(cells: Sequence[Cell], part: str) -> list[Cell]:
    """Return every n-th cell, starting with the i-th, for `i/n`."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", part)
    i, n = (int(match[1]), int(match[2])) if match else (0, 0)
    if n == 0:
        raise InputError(f"--shard {part!r}: expected I/N such as 2/8, the second of eight shards.")
    if not 1 <= i <= n:
        raise InputError(f"--shard {part!r}: expected 1/{n} to {n}/{n}.")
    return list(cells[i - 1 :: n])


def run_cells(
    cells: Sequence[Cell],
    environment: Environment,
    results: Results,
    show: Callable[[str], None],
    keep_runs: bool = False,
) -> Tally:
    """Measure every unfinished cell, one after the other, each in its own process."""
    tally, captune_commit = Tally(), commit()
    drop_leftovers(results.folder / "cells")
    for number, cell in enumerate(cells, start=1):
        started = time.monotonic()
        title = f"[{number}/{len(cells)}] {cell}"
        try:
            inputs = environment.inputs(cell)
            state = results.state(cell, inputs)
            if state == "finished":
                clear_killed(results.run_folder(cell), keep_runs)
                tally.skipped += 1
                continue
            if state in MESSAGES:
                show(f"{title}: {MESSAGES[state]}")
            job = make_job(cell, environment, results, captune_commit, keep_runs)
            problem = _run_process(job, results.log_file(cell))
        except InputError as error:
            problem = str(error)
        content = results.read(cell) if not problem else None
        if content is None:
            tally.failures.append((str(cell), problem or "the cell's file is missing"))
            show(f"{title}: failed: {tally.failures[-1][1]}")
        else:
            tally.measured += 1
            show(f"{title}: {100 * content['score']:.2f} in {time.monotonic() - started:.0f} s")
    return tally


def make_job(
    cell: Cell, environment: Environment, results: Results, captune_commit: str | None = None, keep_run: bool = False
) -> Job:
    """Return the job that measures a cell on this machine."""
    return Job(
        cell=cell.as_dict(),
        root=str(environment.root or ""),
        settings=environment.settings_of(cell),
        inputs=environment.inputs(cell),
        leakage=environment.leakage(cell),
        commit=captune_commit,
        result=str(results.cell_file(cell)),
        run_folder=str(results.run_folder(cell)),
        keep_run=keep_run,
    )


def launched_processes() -> int | None:
    """Return the number of processes that torchrun started, 0 in all but the first one, None without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        raise InputError("A cell runs on one machine: run a part of the suite on each with --shard I/N instead.")
    return 0 if os.environ["RANK"] != "0" else int(os.environ["LOCAL_WORLD_SIZE"])


def _variables() -> dict[str, str]:
    """Return the environment variables without those of torchrun, which would confuse a cell's process."""
    return KEEP_FREED_MEMORY | {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHER and not name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_"))
    }


def _run_process(job: Job, log: Path) -> str:
    """Measure a cell in a process that ends with this one, and return its error, if any."""
    command = [sys.executable, "-m", "captune.benchmark.measuring"]
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        opened = log.open("ab")  # another suite may be writing to it
    except OSError as error:
        raise CaptuneError(f"{str(log)!r} cannot be written: {error.strerror}. Finished cells are kept.") from error
    begin = opened.tell()
    with opened as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=_variables())
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
            process.stdin.flush()
            code = process.wait()
        except BrokenPipeError:  # it ended before it read its job
            code = process.wait()
        except KeyboardInterrupt:
            process.stdin.close()  # interrupts it, if the terminal has not done so already
            process.wait(SECONDS_TO_STOP)
            raise
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return "" if code == 0 else _last_error(log, begin, code)


def _last_error(log: Path, begin: int, code: int) -> str:
    """Return the error that a process ended with, from its log since position `begin`."""
    lines = log.read_bytes()[begin:].decode("utf-8", errors="replace").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        return "\n".join(lines[starts[-1] :]).removeprefix("error: ")
    last = next((line for line in reversed(lines) if line.strip()), "")
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how}: {last} (see {log})"
