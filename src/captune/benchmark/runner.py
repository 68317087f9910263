"""Runs a suite: finished cells are skipped, interrupted ones resumed, and failures do not stop the others."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import captune
from captune.benchmark.cells import Cell, Results
from captune.benchmark.datasets.base import open_dataset
from captune.benchmark.measuring import Job, measure
from captune.core.errors import CaptuneError, InputError
from captune.core.files import drop_leftovers, is_file, is_folder

PACKAGE = Path(captune.__file__).parent
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


@dataclass(frozen=True)
class Environment:
    """The folders of datasets (`{data}` in suite files) and models (`{models}`), and the settings of this machine."""

    root: Path | None = None
    models: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    _fingerprints: dict[str, str | InputError] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)

    def settings_of(self, cell: Cell) -> dict[str, Any]:
        """Return a cell's settings with all paths filled in, and those of this machine."""
        filled = {name: self._fill(value) if isinstance(value, str) else value for name, value in cell.settings.items()}
        return {**filled, **self.settings}

    def is_found(self, dataset: str) -> bool:
        """Return whether a dataset's files exist, without reading them."""
        return open_dataset(dataset).is_found(self.root or Path(os.devnull))  # which contains nothing

    def inputs(self, cell: Cell) -> dict[str, str]:
        """Return fingerprints of the data, descriptions and weights that a cell uses."""
        settings = self.settings_of(cell)
        used = {"data": self._fingerprint(cell.dataset)}
        for role in ("describer", "backbone"):
            path = str(settings[role]).partition(":")[2]
            if path and (is_file(path) or is_folder(path)):
                if path not in self._digests:
                    self._digests[path] = digest_path(Path(path))
                used[role] = self._digests[path]
        return used

    def _fill(self, value: str) -> str:
        for mark, folder, flag in (("{data}", self.root, "--data"), ("{models}", self.models, "--models")):
            if mark in value:
                if folder is None:
                    raise InputError(f"{value!r} needs {flag} FOLDER.")
                value = value.replace(mark, str(folder))
        return value.replace("{captune}", str(PACKAGE))

    def _fingerprint(self, name: str) -> str:
        """Return the fingerprint of a dataset, which is read once, whether or not it can be read."""
        if name not in self._fingerprints:
            try:
                if self.root is None and not self.is_found(name):
                    raise InputError(f"The dataset {name!r} needs --data FOLDER, the folder that contains it.")
                self._fingerprints[name] = open_dataset(name).load(self.root or Path()).fingerprint
            except InputError as error:
                self._fingerprints[name] = error
        found = self._fingerprints[name]
        if isinstance(found, InputError):
            raise found
        return found


def digest_path(path: Path) -> str:
    """Return a digest of a file's content, or of the names and sizes of a folder's files."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        if path.is_file():
            digest.update(path.read_bytes())
        else:
            for file in sorted(file for file in path.rglob("*") if file.is_file()):
                digest.update(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\n".encode())
    except OSError as error:
        raise InputError(f"{error.filename!r} cannot be read: {error.strerror}.") from error
    return digest.hexdigest()


def commit() -> str | None:
    """Return the commit of the checkout that captune runs from, with a plus if files have been changed."""
    git = ["git", "-C", str(PACKAGE)]
    try:
        found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "-uno", "."], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{found}+" if changed else found


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
                problem = _measure_in_process(make_job(cell, environment, results, captune_commit, keep_runs))
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


def make_job(
    cell: Cell, environment: Environment, results: Results, captune_commit: str | None = None, keep_run: bool = False
) -> Job:
    """Return the job that measures a cell on this machine."""
    settings, inputs = environment.settings_of(cell), environment.inputs(cell)
    return Job(cell, results, environment.root or Path(), settings, inputs, captune_commit, keep_run)


def _measure_in_process(job: Job) -> str:
    """Measure a cell in a process of its own and return its error, if any.

    The peak memory of a cell is thus known, and a crash costs one cell only. Processes are forked from a server that
    has imported everything, so that short cells take no longer than their work.
    """
    log = job.results.log_file(job.cell)
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
    except (CaptuneError, OSError) as error:
        code = 2
        sys.stderr.write(f"error: {error}\n")
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
    text = "\n" + log.read_bytes()[begin:].decode("utf-8", errors="replace").rstrip()
    if "\nerror: " in text:
        return text.rpartition("\nerror: ")[2]
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how}: {text.splitlines()[-1]} (see {log})"
