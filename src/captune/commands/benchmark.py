"""Benchmarks: measure methods on datasets and write the tables of a suite."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from captune.commands import _shared
from captune.commands._shared import argument, command, flag, out, say, several
from captune.core.errors import CaptuneError, InputError

if TYPE_CHECKING:
    from captune.benchmark.cells import Cell, Environment, Results

MACHINE = ("workers", "accelerator")
"""Flags that affect results by rounding only."""


@command(
    argument("suite", metavar="SUITE", help="name of a suite (captune list suites) or path of a suite file"),
    argument("--data", metavar="FOLDER", help="folder of the datasets ({data} in suite files)"),
    argument("--models", metavar="FOLDER", help="folder of model folders ({models} in suite files)"),
    out(help="folder of the cells (default: captune-benchmark)", default="captune-benchmark"),
    argument("--tables", metavar="FOLDER", help="folder of the tables (default: OUT/tables)"),
    argument("--figures", metavar="FOLDER", help="also draw the paper's figures of the finished cells"),
    flag("--table", help="write the tables of finished cells without running any"),
    flag("--dry-run", help="list the cells and their state without running any"),
    argument("--shard", metavar="I/N", help="run only every N-th cell, to share a suite among machines"),
    several("--only", help="dataset=, setting=, method= or seed=", metavar="AXIS=a,b"),
    flag("--keep-runs", help="keep the run folder of every cell, with its report"),
    _shared.WORKERS,
    _shared.ACCELERATOR,
)
def benchmark(options: argparse.Namespace) -> int:
    """Measure methods on datasets and write the tables of a suite."""
    from captune.benchmark.cells import Environment, Results
    from captune.benchmark.runner import run_cells, shard
    from captune.benchmark.suite import read_suite
    from captune.benchmark.tables import finished_cells, read_rows, write_tables
    from captune.core.files import is_folder
    from captune.core.settings import RunSettings, build

    suite = read_suite(options.suite, _only(options.only))
    machine = {name: value for name in MACHINE if (value := getattr(options, name)) is not None}
    build(RunSettings, machine, "options")
    data, models = (Path(folder) if folder else None for folder in (options.data, options.models))
    for folder in (data, models):
        if folder is not None and not options.table and not is_folder(folder):  # with which every cell would fail
            raise InputError(f"{str(folder)!r}: no such folder.")
    environment, results = Environment(data, models, machine), Results(Path(options.out))
    cells = shard(suite.cells(), options.shard) if options.shard else suite.cells()
    if options.dry_run:
        _list_cells(cells, environment, results)
        return 0
    failures: list[tuple[str, str]] = []
    if not options.table:
        tally = run_cells(cells, environment, results, say, options.keep_runs)
        failures = tally.failures
        say(f"{tally.measured} cells measured, {tally.skipped} already finished, {len(failures)} failed.")
    rows = read_rows(suite, results)
    written = write_tables(suite, rows, Path(options.tables or results.folder / "tables"), _command(options))
    say(f"{len(finished_cells(rows))} of {len(suite.cells())} cells are finished. Tables: {written[0]}")
    if options.figures:
        from captune.benchmark.figures import write_figures

        drawn = write_figures(rows, Path(options.figures))
        say(f"{len(drawn)} figures and tables of figures: {options.figures}")
    for file in results.damaged(suite.cells()):
        say(f"damaged: {file} is ignored; delete it or run the suite again")
    for cell, problem in failures:
        say(f"failed: {cell}: {problem}")
    return 1 if failures else 0


def _list_cells(cells: Sequence[Cell], environment: Environment, results: Results) -> None:
    """List every cell with its state, and what is missing."""
    states: Counter[str] = Counter()
    problems: dict[str, None] = {}
    for number, cell in enumerate(cells, start=1):
        data, state = "found" if environment.is_found(cell.dataset) else "missing", "to do"
        try:
            state = results.state(cell, environment.inputs(cell))
        except CaptuneError as error:
            problems[str(error)] = None
        states[state] += 1
        say(f"{number:>4} {state:<11} data {data:<7} {cell}")
    say(f"{len(cells)} cells, {states['finished']} finished.")
    for problem in problems:
        say(f"missing: {problem}")


def _only(pairs: list[str]) -> dict[str, list[str]]:
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
