"""Runs a suite: finished cells are skipped, interrupted ones resumed, and failures do not stop the others."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from captune.benchmark.cells import PACKAGE, Cell, Environment, Results
from captune.benchmark.measuring import measure
from captune.core.errors import CaptuneError, InputError
from captune.core.files import drop_leftovers

INTERRUPTED = 130
SECONDS_TO_STOP = 120
"""How long an interrupted cell may take to finish its step and write its checkpoint."""
CONTEXT: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
PRELOADED = ["captune.benchmark.measuring", "sklearn.metrics"]
MOST_CHARACTERS = 4096
"""Of an error: what fits into a pipe that nobody reads yet."""
MESSAGES = {
    "interrupted": "resuming",
    "outdated": "measuring again because its file is damaged or its data, weights or settings have changed",
}
"""Messages by the state of a cell."""


def commit() -> str | None:
    """Return the commit of the checkout that captune runs from, with a plus if files have been changed."""
    git = ["git", "-C", str(PACKAGE), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    return None


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
    if not 1 <= i <= n:
        raise InputError(f"--shard {part!r}: expected I/N such as 2/8, the second of eight shards.")
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
        started, title, problem = time.monotonic(), f"[{number}/{len(cells)}] {cell}", ""
        try:
            state = results.state(cell, environment.inputs(cell))
            if state in MESSAGES:
                show(f"{title}: {MESSAGES[state]}")
            if state != "finished" or results.lock_file(cell).exists():  # else a killed process left its run folder
                log = results.log_file(cell)
                problem = _in_process(log, cell, results, environment, captune_commit, keep_runs)
            if state == "finished":
                tally.skipped += 1
                continue
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


def _in_process(log: Path, *job: Any) -> str:  # noqa: ANN401 (the arguments of `measure`)
    """Measure a cell in a process of its own, with its output in a log file, and return its error, if any.

    The peak memory of a cell is thus known, and a crash costs one cell only. Processes are forked from a server that
    has imported everything, so that short cells take no longer than their work.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise CaptuneError(f"{str(log)!r} cannot be written: {error.strerror}. Finished cells are kept.") from error
    if hasattr(CONTEXT, "set_forkserver_preload"):
        CONTEXT.set_forkserver_preload(PRELOADED)
    told, answer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_measure_into_log, args=(str(log.absolute()), answer, *job))
    process.start()
    answer.close()
    try:
        process.join()
    except KeyboardInterrupt:
        process.terminate()
        process.join(SECONDS_TO_STOP)
        process.kill()
        raise
    code = process.exitcode
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if not code:
        return ""
    with suppress(EOFError):
        if told.poll():
            return str(told.recv())
    return f"{f'killed by signal {-code}' if code < 0 else f'exit code {code}'} (see {log})"


def _measure_into_log(log: str, answer: Connection, *job: Any) -> NoReturn:  # noqa: ANN401
    """Measure a cell, send the error if there is one, and end this process with an exit code."""
    with suppress(OSError), open(log, "ab", buffering=0) as output:  # noqa: PTH123 (a descriptor is needed)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the suite, which then terminates this process
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with_suite, daemon=True).start()
    code = 0
    try:
        measure(*job)
    except KeyboardInterrupt:
        code = INTERRUPTED
        sys.stderr.write("interrupted\n")
    except Exception as error:
        code, is_known = 1, isinstance(error, (CaptuneError, OSError))
        message = str(error) if is_known else f"{type(error).__name__}: {error} (see {log})"
        answer.send(message[:MOST_CHARACTERS])
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
