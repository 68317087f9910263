"""captune benchmark: every table of a suite by one command."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from captune.benchmark.cells import Cell
    from captune.benchmark.results import Results
    from captune.benchmark.suite import Speed
    from captune.benchmark.surroundings import Surroundings

MACHINE = ("workers", "accelerator", "devices", "strategy")
"""Flags that say where cells are measured and change no result but for rounding."""


def add(commands: Any) -> None:  # noqa: ANN401 (argparse keeps this class private)
    """Declare the command."""
    words = commands.add_parser(
        "benchmark", help="measure methods on datasets and write the tables of a suite", allow_abbrev=False
    )
    words.add_argument(
        "suite", metavar="SUITE", help="name of a suite (captune list suites), or a suite file of your own"
    )
    words.add_argument("--data", metavar="FOLDER", help="folder of the datasets ({data} in suite files)")
    words.add_argument("--models", metavar="FOLDER", help="folder of model folders ({models} in suite files)")
    words.add_argument(
        "--out", default="captune-benchmark", metavar="FOLDER", help="where cells are kept (default: captune-benchmark)"
    )
    words.add_argument("--tables", metavar="FOLDER", help="where tables are written (default: OUT/tables)")
    instead = words.add_mutually_exclusive_group()
    instead.add_argument("--table", action="store_true", help="write the tables of what is finished, run nothing")
    instead.add_argument("--dry-run", action="store_true", help="list the cells and what each needs, run nothing")
    words.add_argument("--shard", metavar="I/N", help="run every N-th cell only, for several machines")
    words.add_argument(
        "--only", action="append", default=[], metavar="AXIS=a,b", help="dataset=, setting=, method= or seed="
    )
    words.add_argument("--keep-runs", action="store_true", help="keep every run folder, with its report")
    words.add_argument("--workers", type=int, help="processes that decode images")
    words.add_argument("--accelerator", metavar="auto|cpu|cuda|mps", help="what computes (default: auto)")
    words.add_argument("--devices", type=int, metavar="N", help="processes that measure a cell, one for each GPU")
    words.add_argument("--strategy", metavar="auto|ddp", help="how several processes work together")


def run(options: argparse.Namespace) -> int:
    """Run the cells that are not finished, write the tables, and return 1 where cells failed."""
    from captune.benchmark.results import Results
    from captune.benchmark.runner import launched_processes, run_cells, shard
    from captune.benchmark.suite import read_suite
    from captune.benchmark.surroundings import Surroundings
    from captune.benchmark.table import gather, write_tables
    from captune.commands._screen import Screen

    launched = launched_processes()
    if launched is not None and not launched:
        return 0  # the first process of torchrun starts those of each cell
    screen = Screen(highlight=False, soft_wrap=True, markup=False)
    suite = read_suite(options.suite, _only(options.only))
    _check(options)
    machine = {name: value for name in MACHINE if (value := getattr(options, name)) is not None}
    machine |= {"devices": launched} if launched else {}
    data, models = (Path(folder) if folder else None for folder in (options.data, options.models))
    here, results = Surroundings(data, models, machine), Results(Path(options.out))
    cells = suite.cells()
    if options.shard:
        cells = shard(cells, options.shard)
    if options.dry_run:
        _show_needs(cells, here, results, suite.tables[0].file.speed, screen.print)
        return 0
    failures: list[tuple[str, str]] = []
    if not options.table:
        tally = run_cells(cells, here, results, screen.print, options.keep_runs)
        screen.print(f"{tally.finished} cells measured, {tally.skipped} were there, {len(tally.failures)} failed.")
        failures = tally.failures
    measured = gather(suite, results)
    written = write_tables(measured, Path(options.tables or results.folder / "tables"), _command(options))
    screen.print(f"{measured.n_finished} of {measured.n_cells} cells are finished. Tables: {written[0]}")
    for file in results.damaged(suite.cells()):
        screen.print(f"damaged: {file} does not count; delete it, or run the suite again")
    for cell, problem in failures:
        screen.print(f"failed: {cell}: {problem}")
    return 1 if failures else 0


def _show_needs(
    cells: Sequence[Cell], here: Surroundings, results: Results, speed: Speed, say: Callable[[str], None]
) -> None:
    """List every cell with what it needs, and the sums."""
    from captune.benchmark.estimate import estimate
    from captune.benchmark.runner import show
    from captune.core.runtime import duration

    needs = estimate(cells, here, results, speed)
    width = max((len(show(cell)) for cell in cells), default=0)
    for number, need in enumerate(needs, start=1):
        sizes = need.sizes
        counts = f"{sizes.unlabeled}+{sizes.labeled}/{sizes.test}" if sizes else "unknown"
        seconds = "?" if need.seconds is None else duration(need.seconds)
        data = "found" if need.is_found else "missing"
        say(
            f"{number:>4} {show(need.cell):<{width}}  {need.state:<11} data {data:<7} "
            f"images {counts:<16} encode {need.to_encode:<7} steps {need.steps:<7} ~{seconds}"
        )
    left = [need for need in needs if need.state != "finished"]
    total, n_images, n_steps = (
        sum(getattr(need, what) or 0 for need in left) for what in ("seconds", "to_encode", "steps")
    )
    say("images: unlabeled+labeled/test; encode: those that no earlier cell encodes.")
    say(f"{len(needs)} cells, {len(needs) - len(left)} finished; left: {n_images} images to encode, {n_steps} steps.")
    say(
        f"About {duration(total)}: finished cells of a kind tell its time, for others "
        f"{speed.images_per_second:g} images and {speed.steps_per_second:g} steps a second are assumed."
    )
    for problem in dict.fromkeys(need.problem for need in needs if need.problem):
        say(f"missing: {problem}")


def _check(options: argparse.Namespace) -> None:
    """Refuse what would let every cell fail: folders that are not there, numbers that cannot be."""
    from captune.core.errors import InputError
    from captune.core.files import is_folder

    for name in () if options.table else ("data", "models"):
        folder = getattr(options, name)
        if folder is not None and not is_folder(folder):
            raise InputError(f"--{name} {folder!r}: there is no such folder.")
    for name, least in (("workers", 0), ("devices", 1)):
        number = getattr(options, name)
        if number is not None and number < least:
            raise InputError(f"--{name} {number}: expected {least} or more.")


def _only(pairs: list[str]) -> dict[str, list[str]]:
    from captune.core.errors import InputError

    chosen: dict[str, list[str]] = {}
    for pair in pairs:
        axis, equals, values = pair.partition("=")
        if not equals or not values:
            raise InputError(f"--only {pair!r}: expected AXIS=a,b such as method=cap,zero_shot.")
        chosen.setdefault(axis, []).extend(re.split(r",(?! )", values))  # names such as `cap, 20 %` stay whole
    return chosen


def _command(options: argparse.Namespace) -> str:
    """Return the command that makes these tables, without the folders of this machine."""
    suite = Path(options.suite).name if Path(options.suite).is_absolute() else options.suite
    words = ["captune benchmark", suite, *(f"--only {pair}" for pair in options.only)]
    words += [f"--{name} {name.upper()}" for name in ("data", "models") if getattr(options, name)]
    return " ".join(words)
