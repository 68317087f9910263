"""captune benchmark: every table of a suite by one command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:  # noqa: ANN401 (argparse keeps this class private)
    """Declare the command."""
    words = commands.add_parser(
        "benchmark", help="measure methods on datasets and write the tables of a suite", allow_abbrev=False
    )
    words.add_argument("suite", metavar="SUITE", help="suite file, such as suites/smoke.yaml")
    words.add_argument("--data", metavar="FOLDER", help="folder of the datasets ({data} in suite files)")
    words.add_argument("--models", metavar="FOLDER", help="folder of model folders ({models} in suite files)")
    words.add_argument(
        "--out", default="captune-benchmark", metavar="FOLDER", help="where cells are kept (default: captune-benchmark)"
    )
    words.add_argument("--tables", metavar="FOLDER", help="where tables are written (default: OUT/tables)")
    words.add_argument("--table", action="store_true", help="write the tables of what is finished, run nothing")
    words.add_argument("--dry-run", action="store_true", help="list the cells and what each needs, run nothing")
    words.add_argument("--shard", metavar="I/N", help="run every N-th cell only, for several machines")
    words.add_argument(
        "--only", action="append", default=[], metavar="AXIS=a,b", help="dataset=, setting=, method= or seed="
    )
    words.add_argument("--keep-runs", action="store_true", help="keep every run folder, with its report")
    words.add_argument("--workers", type=int, help="processes that decode images")


def run(options: argparse.Namespace) -> int:
    """Run the cells that are not finished, write the tables, and return 1 where cells failed."""
    from captune.benchmark.results import Results
    from captune.benchmark.runner import run_cells, shard
    from captune.benchmark.suite import read_suite
    from captune.benchmark.surroundings import Surroundings
    from captune.commands._screen import Screen

    screen = Screen(highlight=False, soft_wrap=True, markup=False)
    suite = read_suite(options.suite, _only(options.only))
    machine = {} if options.workers is None else {"workers": options.workers}
    data, models = (Path(folder) if folder else None for folder in (options.data, options.models))
    here, results = Surroundings(data, models, machine), Results(Path(options.out))
    cells = suite.cells()
    if options.shard:
        cells = shard(cells, options.shard)
    failures: list[tuple[str, str]] = []
    if not options.table:
        tally = run_cells(cells, here, results, screen.print, options.keep_runs)
        screen.print(f"{tally.finished} cells measured, {tally.skipped} were there, {len(tally.failures)} failed.")
        failures = tally.failures
    for cell, problem in failures:
        screen.print(f"failed: {cell}: {problem}")
    return 1 if failures else 0


def _only(pairs: list[str]) -> dict[str, list[str]]:
    from captune.errors import InputError

    chosen: dict[str, list[str]] = {}
    for pair in pairs:
        axis, equals, values = pair.partition("=")
        if not equals or not values:
            raise InputError(f"--only {pair!r}: expected AXIS=a,b such as method=cap,zero_shot.")
        chosen.setdefault(axis, []).extend(values.split(","))
    return chosen
