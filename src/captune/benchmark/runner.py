"""Runs a suite: finished cells are skipped, interrupted ones resumed, and failures do not stop the others."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from captune.benchmark.cells import Cell, Results
from captune.benchmark.environment import Environment, commit
from captune.benchmark.measuring import Job, clear_killed, measure
from captune.core.errors import CaptuneError, InputError
from captune.core.files import drop_leftovers

INTERRUPTED = 130
SECONDS_TO_STOP = 120
"""How long an interrupted cell may take to finish its step and write its checkpoint."""
CONTEXT: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
PRELOADED = ["captune.benchmark.measuring", "lightning_fabric", "sklearn.metrics"]
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
            state = results.state(cell, environment.inputs(cell))
            if state == "finished":
                clear_killed(results.run_folder(cell), keep_runs)
                tally.skipped += 1
                continue
            if state in MESSAGES:
                show(f"{title}: {MESSAGES[state]}")
            job = make_job(cell, environment, results, captune_commit, keep_runs)
            problem = measure_in_process(job, results.log_file(cell))
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
        cell=cell,
        root=str(environment.root or ""),
        settings=environment.settings_of(cell),
        inputs=environment.inputs(cell),
        leakage=environment.leakage(cell),
        commit=captune_commit,
        result=str(results.cell_file(cell)),
        run_folder=str(results.run_folder(cell)),
        keep_run=keep_run,
    )


def measure_in_process(job: Job, log: Path) -> str:
    """Measure a cell in a process of its own and return its error, if any.

    The peak memory of a cell is thus known, and a crash costs one cell only. Processes are forked from a server that
    has imported everything, so that short cells take no longer than their work.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise CaptuneError(f"{str(log)!r} cannot be written: {error.strerror}. Finished cells are kept.") from error
    begin = log.stat().st_size
    if hasattr(CONTEXT, "set_forkserver_preload"):
        CONTEXT.set_forkserver_preload(PRELOADED)
    process = CONTEXT.Process(target=_measure_into_log, args=(job, str(log.absolute())))
    process.start()
    try:
        process.join()
    except KeyboardInterrupt:
        process.terminate()
        process.join(SECONDS_TO_STOP)
        process.kill()
        raise
    if process.exitcode == INTERRUPTED:
        raise KeyboardInterrupt
    return _last_error(log, begin, process.exitcode) if process.exitcode else ""


def _measure_into_log(job: Job, log: str) -> NoReturn:
    """Measure a cell with its output in a log file, and end this process with an exit code."""
    with suppress(OSError), open(log, "ab", buffering=0) as output:  # noqa: PTH123 (a descriptor is needed)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the suite, which then terminates this process
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with_suite, daemon=True).start()
    code = 0
    try:
        measure(job)
    except CaptuneError as error:
        code = 2
        sys.stderr.write(f"error: {error}\n")
    except OSError as error:
        code = 2
        place = f"{os.fsdecode(error.filename)!r}" if error.filename is not None else "A file"
        sys.stderr.write(f"error: {place} cannot be read or written: {error.strerror or error}.\n")
    except KeyboardInterrupt:
        code = INTERRUPTED
        sys.stderr.write("interrupted\n")
    except Exception:
        code = 1
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # at once: there is nothing to tear down


def _end_with_suite() -> None:
    """Interrupt this process when the one that started it is gone."""
    suite = multiprocessing.parent_process()
    assert suite is not None
    suite.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _last_error(log: Path, begin: int, code: int) -> str:
    """Return the error that a process ended with, from its log since position `begin`."""
    lines = log.read_bytes()[begin:].decode("utf-8", errors="replace").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        return "\n".join(lines[starts[-1] :]).removeprefix("error: ")
    last = next((line for line in reversed(lines) if line.strip()), "")
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how}: {last} (see {log})"
