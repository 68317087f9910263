"""Runs a suite: finished cells are skipped, interrupted ones resumed, and failures do not stop the others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from captune.benchmark.cell_process import CAN_FORK, INTERRUPTED
from captune.benchmark.cells import Cell, Results
from captune.benchmark.environment import Environment, commit
from captune.benchmark.measuring import Job, clear_killed
from captune.core.errors import CaptuneError, InputError
from captune.core.files import drop_leftovers
from captune.core.launching import KEEP_FREED_MEMORY

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
    process = CellProcess()
    try:
        return _run_all(cells, environment, results, show, keep_runs, process)
    finally:
        process.close()


def _run_all(
    cells: Sequence[Cell],
    environment: Environment,
    results: Results,
    show: Callable[[str], None],
    keep_runs: bool,
    process: CellProcess,
) -> Tally:
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
            problem = process.run(job, results.log_file(cell))
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


class CellProcess:
    """The process that measures cells, started when the first one is due and again after it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, job: Job, log: Path) -> str:
        """Measure a cell and return its error, if any."""
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            opened = log.open("ab")  # another suite may be writing to it
        except OSError as error:
            raise CaptuneError(f"{str(log)!r} cannot be written: {error.strerror}. Finished cells are kept.") from error
        begin = opened.tell()
        with opened as output:
            process = self._process = self._process or self._start(output)
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"job": asdict(job), "log": str(log.absolute())}
        with suppress(BrokenPipeError):  # it ended before it read its job
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        answer = process.stdout.readline().strip()
        code = int(answer) if answer else self.close()
        if answer and not CAN_FORK:
            self.close()
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return "" if code == 0 else _last_error(log, begin, code)

    def close(self) -> int:
        """End the process, which interrupts the cell that it measures, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            return process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def _start(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "captune.benchmark.cell_process"]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=KEEP_FREED_MEMORY | os.environ
        )


def _last_error(log: Path, begin: int, code: int) -> str:
    """Return the error that a process ended with, from its log since position `begin`."""
    lines = log.read_bytes()[begin:].decode("utf-8", errors="replace").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        return "\n".join(lines[starts[-1] :]).removeprefix("error: ")
    last = next((line for line in reversed(lines) if line.strip()), "")
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how}: {last} (see {log})"
