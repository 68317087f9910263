"""captune benchmark: measure methods on datasets and write the tables of a suite."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from captune.benchmark.cells import Cell, Results
    from captune.benchmark.environment import Environment

MACHINE = ("workers", "accelerator")
"""Flags that affect results by rounding only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("suite", metavar="SUITE", help="name of a suite (captune list suites) or path of a suite file")
    parser.add_argument("--data", metavar="FOLDER", help="folder of the datasets ({data} in suite files)")
    parser.add_argument("--models", metavar="FOLDER", help="folder of model folders ({models} in suite files)")
    parser.add_argument(
        "--out", default="captune-benchmark", metavar="FOLDER", help="folder of the cells (default: captune-benchmark)"
    )
    parser.add_argument("--tables", metavar="FOLDER", help="folder of the tables (default: OUT/tables)")
    parser.add_argument("--figures", metavar="FOLDER", help="also draw the paper's figures of the finished cells")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--table", action="store_true", help="write the tables of finished cells without running any")
    modes.add_argument("--dry-run", action="store_true", help="list the cells and their state without running any")
    parser.add_argument("--shard", metavar="I/N", help="run only every N-th cell, to share a suite among machines")
    parser.add_argument(
        "--only", action="append", default=[], metavar="AXIS=a,b", help="dataset=, setting=, method= or seed="
    )
    parser.add_argument("--keep-runs", action="store_true", help="keep the run folder of every cell, with its report")
    parser.add_argument("--workers", type=int, help="number of processes that decode images")
    parser.add_argument("--accelerator", metavar="auto|cpu|cuda|mps", help="device type (default: auto)")


def run(options: argparse.Namespace) -> int:
    """Run the unfinished cells, write the tables, and return 1 if any cell failed."""
    from captune.benchmark.cells import Results
    from captune.benchmark.environment import Environment
    from captune.benchmark.runner import run_cells, shard
    from captune.benchmark.suite import read_suite
    from captune.benchmark.tables import aggregate, write_tables
    from captune.commands._screen import Screen

    screen = Screen(highlight=False, soft_wrap=True, markup=False)
    suite = read_suite(options.suite, _only(options.only))
    _check(options)
    machine = {name: value for name in MACHINE if (value := getattr(options, name)) is not None}
    data, models = (Path(folder) if folder else None for folder in (options.data, options.models))
    environment, results = Environment(data, models, machine), Results(Path(options.out))
    cells = shard(suite.cells(), options.shard) if options.shard else suite.cells()
    if options.dry_run:
        _list_cells(cells, environment, results, screen.print)
        return 0
    failures: list[tuple[str, str]] = []
    if not options.table:
        tally = run_cells(cells, environment, results, screen.print, options.keep_runs)
        failures = tally.failures
        screen.print(f"{tally.measured} cells measured, {tally.skipped} already finished, {len(failures)} failed.")
    measured = aggregate(suite, results)
    written = write_tables(measured, Path(options.tables or results.folder / "tables"), _command(options))
    screen.print(f"{measured.n_finished} of {measured.n_cells} cells are finished. Tables: {written[0]}")
    if options.figures:
        from captune.benchmark.figures import write_figures

        drawn = write_figures(suite, results, Path(options.figures))
        screen.print(f"{len(drawn)} figures and tables of figures: {options.figures}")
    for file in results.damaged(suite.cells()):
        screen.print(f"damaged: {file} is ignored; delete it or run the suite again")
    for cell, problem in failures:
        screen.print(f"failed: {cell}: {problem}")
    return 1 if failures else 0


def _list_cells(cells: Sequence[Cell], environment: Environment, results: Results, show: Callable[[str], None]) -> None:
    """List every cell with its state, and what is missing."""
    from captune.core.errors import CaptuneError

    states: Counter[str] = Counter()
    problems: dict[str, None] = {}
    for number, cell in enumerate(cells, start=1):
        data, state = "found" if environment.is_found(cell.dataset) else "missing", "to do"
        try:
            state = results.state(cell, environment.inputs(cell))
        except CaptuneError as error:
            problems[str(error)] = None
        states[state] += 1
        show(f"{number:>4} {state:<11} data {data:<7} {cell}")
    show(f"{len(cells)} cells, {states['finished']} finished.")
    for problem in problems:
        show(f"missing: {problem}")


def _check(options: argparse.Namespace) -> None:
    """Reject folders and numbers with which every cell would fail."""
    from captune.core.errors import InputError
    from captune.core.files import is_folder

    for name in () if options.table else ("data", "models"):
        folder = getattr(options, name)
        if folder is not None and not is_folder(folder):
            raise InputError(f"--{name} {folder!r}: no such folder.")
    if options.workers is not None and options.workers < 0:
        raise InputError(f"--workers {options.workers}: expected 0 or more.")


def _only(pairs: list[str]) -> dict[str, list[str]]:
    from captune.core.errors import InputError

    chosen: dict[str, list[str]] = {}
    for pair in pairs:
        axis, equals, values = pair.partition("=")
        if not equals or not values:
            raise InputError(f"--only {pair!r}: expected AXIS=a,b such as method=cap,zero_shot.")
        chosen.setdefault(axis, []).extend(re.split(r",(?! )", values))  # keeps names such as `cap, 20 %`
    return chosen


def _command(options: argparse.Namespace) -> str:
    """Return the command that makes these tables, with placeholders for folders."""
    suite = Path(options.suite).name if Path(options.suite).is_absolute() else options.suite
    words = ["captune benchmark", suite, *(f"--only {pair}" for pair in options.only)]
    words += [f"--{name} {name.upper()}" for name in ("data", "models") if getattr(options, name)]
    return " ".join(words)
