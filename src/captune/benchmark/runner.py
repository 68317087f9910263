"""Running a suite: finished cells are skipped, interrupted ones go on, failures are listed and stop nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from captune.benchmark.cells import SETTING_TITLES, Cell
from captune.benchmark.measuring import INTERRUPTED, Order, clear_killed
from captune.benchmark.results import Results
from captune.benchmark.surroundings import Surroundings, commit
from captune.core.errors import CaptuneError, InputError
from captune.core.files import drop_leftovers

LAUNCHER = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
SECONDS_TO_STOP = 120
"""How long an interrupted cell may take to end its step and write its checkpoint."""

SENTENCES = {
    "interrupted": "going on",
    "outdated": "measuring again, because its file is damaged or rests on other data, weights or settings",
}
"""What is said of a cell that is not simply to do, by its state."""


@dataclass
class Tally:
    """What became of the cells."""

    finished: int = 0
    skipped: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)


def shard(cells: Sequence[Cell], part: str) -> list[Cell]:
    """Return the cells of part `i/n`, every n-th one."""
    words = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", part)
    i, n = (int(words[1]), int(words[2])) if words else (0, 0)
    if n == 0:
        raise InputError(f"--shard {part!r}: expected i/n such as 2/8, the second of eight parts.")
    if not 1 <= i <= n:
        raise InputError(f"--shard {part!r}: expected 1/{n} to {n}/{n}.")
    return list(cells[i - 1 :: n])


def run_cells(
    cells: Sequence[Cell],
    here: Surroundings,
    results: Results,
    say: Callable[[str], None],
    keep_runs: bool = False,
) -> Tally:
    """Measure every cell that is not finished yet, one after the other, each in a process of its own."""
    tally, made_from = Tally(), commit()
    drop_leftovers(results.folder / "cells")
    for number, cell in enumerate(cells, start=1):
        started = time.monotonic()
        title = f"[{number}/{len(cells)}] {show(cell)}"
        try:
            inputs = here.inputs(cell)
            state = results.state(cell, inputs)
            if state == "finished":
                clear_killed(results.run_folder(cell), keep_runs)
                tally.skipped += 1
                continue
            if state in SENTENCES:
                say(f"{title}: {SENTENCES[state]}")
            order = Order(
                cell=cell.facts(),
                root=str(here.root or ""),
                settings=here.settings_of(cell),
                inputs=inputs,
                leakage=here.find(cell.dataset).leakage,
                commit=made_from,
                result=str(results.cell_file(cell)),
                run_folder=str(results.run_folder(cell)),
                keep_run=keep_runs,
            )
            problem = _measure_apart(order, results.log_file(cell))
        except InputError as error:
            problem = str(error)
        content = results.read(cell) if not problem else None
        if content is None:
            tally.failures.append((show(cell), problem or "the cell's file is missing"))
            say(f"{title}: failed: {tally.failures[-1][1]}")
        else:
            tally.finished += 1
            say(f"{title}: {100 * content['score']:.2f} in {time.monotonic() - started:.0f} s")
    return tally


def launched_processes() -> int | None:
    """Return how many processes torchrun started, 0 in all but the first of them, None without it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        raise InputError("A cell is measured on one machine: give each its part of the suite with --shard I/N instead.")
    return 0 if os.environ["RANK"] != "0" else int(os.environ["LOCAL_WORLD_SIZE"])


def _environment() -> dict[str, str]:
    """Return this process's environment without torchrun's words, which a cell would take for its own."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHER and not name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_"))
    }


def show(cell: Cell) -> str:
    """Return a cell in words."""
    choices = "".join(f" {name}={value}" for name, value in cell.choices.items())
    return f"{cell.dataset} {SETTING_TITLES[cell.setting]} {cell.method}{choices} seed {cell.seed} ({cell.key[:8]})"


def _measure_apart(order: Order, log: Path) -> str:
    """Measure a cell in another process and return what went wrong, or nothing; the process ends with this one."""
    words = [sys.executable, "-m", "captune.benchmark.measuring"]
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        opened = log.open("ab")  # another suite on the same folder may be writing to it
    except OSError as error:
        raise CaptuneError(
            f"{str(log)!r} cannot be written: {error.strerror}. Nothing that was saved is lost."
        ) from error
    begin = opened.tell()
    with opened as said:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=said, stderr=said, env=_environment())
        assert process.stdin is not None
        try:
            process.stdin.write(order.dumps().encode() + b"\n")
            process.stdin.flush()
            code = process.wait()
        except BrokenPipeError:  # it ended before it read its order
            code = process.wait()
        except KeyboardInterrupt:
            process.stdin.close()  # which it notices, if the terminal has not told it already
            process.wait(SECONDS_TO_STOP)
            raise
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return "" if code == 0 else _last_words(log, begin, code)


def _last_words(log: Path, begin: int, code: int) -> str:
    """Return the error that a process ended with, from what its log says since `begin`."""
    lines = log.read_bytes()[begin:].decode("utf-8", errors="replace").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        return "\n".join(lines[starts[-1] :]).removeprefix("error: ")
    last = next((line for line in reversed(lines) if line.strip()), "")
    how = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"{how}: {last} (see {log})"
