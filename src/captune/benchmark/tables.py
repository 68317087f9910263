"""Tables of finished cells: means over seeds, with published numbers in columns of their own."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from captune.benchmark.cells import Cell, Results
from captune.benchmark.splits import SETTING_TITLES
from captune.benchmark.suite import PublishedNumber, Suite, Table, published_tables
from captune.core.files import table as csv_table
from captune.core.files import write_whole

MISSING = "–"
SHOWN_TITLES = {
    "score": "{}",
    "pool_accuracy": "{}, accuracy on the images adapted to",
    "kept_accuracy": "{}, accuracy of the classifier that is kept",
    "kept_pool_accuracy": "{}, accuracy of the classifier that is kept on the images adapted to",
    "balanced_accuracy": "{}, balanced accuracy",
    "ece": "{}, expected calibration error",
    "pool_ece": "{}, expected calibration error on the images adapted to",
}
Grid = list[list[str]]
"""A header and rows of text."""


class Number(NamedTuple):
    """The mean over seeds, and the standard deviation (n - 1) if there are at least two."""

    mean: float
    deviation: float | None
    n: int


@dataclass(frozen=True)
class Entry:
    """The results of one dataset, setting and method over `n_seeds` planned seeds."""

    n_seeds: int
    cells: Sequence[Mapping[str, Any]]
    """The content of the finished cells."""
    published: PublishedNumber | None = None

    @cached_property
    def numbers(self) -> dict[str, Number]:
        """Return the numbers that at least one seed has."""
        values = {name: [v for cell in self.cells if (v := read(cell)) is not None] for name, read in NUMBERS.items()}
        return {name: number for name, found in values.items() if (number := over_seeds(found)) is not None}

    @property
    def difference(self) -> float | None:
        """Return our mean minus the published one, in percentage points."""
        score = self.numbers.get("score")
        return None if score is None or self.published is None else score.mean - self.published.mean


@dataclass(frozen=True, eq=False)
class MeasuredTable:
    """A table of a suite with its results by dataset, setting and method."""

    table: Table
    entries: Mapping[tuple[str, str, str], Entry]


@dataclass(frozen=True, eq=False)
class MeasuredSuite:
    """A suite with its results."""

    suite: Suite
    tables: Sequence[MeasuredTable]
    n_cells: int
    finished: Sequence[Mapping[str, Any]]
    """The content of the finished cells."""


def _metric(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda content: _percent(content["metrics"][name])


def _seconds(content: Mapping[str, Any]) -> float:
    return float(content["seconds"]["adapt"]) - float(content["seconds"]["embedding"])


METRICS = ("accuracy", "balanced_accuracy", "lowest_five", "seen_accuracy", "unseen_accuracy", "harmonic_mean", "ece")
NUMBERS: Mapping[str, Callable[[Mapping[str, Any]], float | None]] = {
    "score": lambda c: _percent(c["score"]),
    **{name: _metric(name) for name in METRICS},
    "pool_accuracy": lambda c: _percent(c["pool"]["accuracy"]),
    "pool_ece": lambda c: _percent(c["pool"]["ece"]),
    "kept_accuracy": lambda c: _percent(c["kept"]["metrics"]["accuracy"]),
    "kept_pool_accuracy": lambda c: _percent(c["kept"]["pool"]["accuracy"]),
    "adapted_is_kept": lambda c: 100.0 * (c["kept"]["classifier"] == "adapted"),
    "mismatched": lambda c: None if c["mismatched"] is None else float(len(c["mismatched"])),
    "first_precision": lambda c: _percent(c["pseudo_labels"][0]["precision"]) if c["pseudo_labels"] else None,
    "last_precision": lambda c: _percent(c["pseudo_labels"][-1]["precision"]) if c["pseudo_labels"] else None,
    "last_images": lambda c: float(c["pseudo_labels"][-1]["images"]) if c["pseudo_labels"] else None,
    # Without embedding: the first cell does it for all methods.
    "minutes": lambda c: _seconds(c) / 60,
    "seconds": _seconds,
    "memory_mb": lambda c: c["peak_memory_mb"]["process"],
}
"""How each number is read from a cell's file; accuracies in percent.

Numbers are those of the adapted classifier, `kept` those of what default settings keep: zero-shot unless the health
check finds that adaptation helps. The pool are the unlabeled images.
"""


def over_seeds(values: Sequence[float]) -> Number | None:
    """Return mean and standard deviation (n - 1) of the values, ignoring NaN."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    return Number(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def aggregate(suite: Suite, results: Results) -> MeasuredSuite:
    """Return the results of every finished cell of a suite."""
    read = {cell.name: results.read(cell) for cell in suite.cells()}
    finished = {name: content for name, content in read.items() if content is not None}
    tables = []
    for table in suite.tables:
        groups: dict[tuple[str, str, str], list[Cell]] = {}
        for place, cell in table.cells.items():
            groups.setdefault((place.dataset, place.setting, place.method), []).append(cell)
        entries = {
            key: Entry(len(cells), [finished[c.name] for c in cells if c.name in finished], table.published(*key))
            for key, cells in groups.items()
        }
        tables.append(MeasuredTable(table, entries))
    return MeasuredSuite(suite, tables, len(read), list(finished.values()))


def write_tables(measured: MeasuredSuite, folder: Path, command: str) -> list[Path]:
    """Write a suite's tables as Markdown, and every number as CSV, and return the files."""
    texts = {"md": as_markdown(measured, command), "csv": as_csv(measured)}
    files = {folder / f"{measured.suite.name}.{suffix}": text for suffix, text in texts.items()}
    for path, text in files.items():
        write_whole(path, text)
    return list(files)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100.0 * value


ORIGINS: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "captune": lambda e: e["versions"]["captune"],
    "commit": lambda e: e["commit"] and e["commit"][:9] + e["commit"][40:],
    "torch": lambda e: e["versions"]["torch"],
    "device": lambda e: e["device"],
}
"""What is told about the environment of the cells."""


def as_markdown(measured: MeasuredSuite, command: str) -> str:
    """Return the page of a suite: scores first, then details."""
    found = {what: {read(cell["environment"]) for cell in measured.finished} for what, read in ORIGINS.items()}
    known = {what: sorted(str(value) for value in values if value) for what, values in found.items()}
    origins = "; ".join(f"{what} {', '.join(values)}" for what, values in known.items() if values)
    lines = [
        f"# {measured.suite.title}",
        "",
        f"{len(measured.finished)} of {measured.n_cells} cells. {origins}. Written by:",
        "",
        f"    {command}",
        "",
        "Test accuracy in percent, mean ± standard deviation (n − 1) over seeds. TRZSL is the harmonic mean of seen "
        "and unseen accuracy, both predicted over all classes.",
    ]
    for part in measured.tables:
        file = part.table.file
        lines += ["", f"## {file.title or part.table.name}"] if len(measured.tables) > 1 else []
        if file.published:
            title = f"{published_tables()[file.published]['title']}; {file.published}"
            lines += ["", f"*paper*: published numbers ({title}), not ours; *diff*: ours − paper."]
        for heading, grid, datasets in score_grids(part):
            lines += ["", f"**{heading}**"] if heading else []
            header, *rows = (f"| {' | '.join(word.replace('|', '∣') for word in row)} |" for row in grid)
            lines += ["", header, f"|{'---|' * len(grid[0])}", *rows, ""]
            lines += [f"- {sentence}" for sentence in data_sentences(part, datasets)]
    return "\n".join(lines) + "\n"


def score_grids(part: MeasuredTable) -> Iterator[tuple[str, Grid, list[str]]]:
    """Yield heading, grid and datasets: one grid if there is a single learning setting, else one per dataset."""
    file = part.table.file
    if len(file.settings) == 1:
        (setting,) = file.settings
        for number in file.shows:
            if grid := _score_grid(part, {dataset: (dataset, setting) for dataset in file.datasets}, number):
                heading = SHOWN_TITLES[number].format(SETTING_TITLES[setting])
                yield heading, grid, list(file.datasets) if number == "score" else []
        return
    for dataset in file.datasets:
        if grid := _score_grid(part, {SETTING_TITLES[setting]: (dataset, setting) for setting in file.settings}):
            yield (dataset if len(file.datasets) > 1 else ""), grid, [dataset]


def _score_grid(part: MeasuredTable, columns: Mapping[str, tuple[str, str]], number: str = "score") -> Grid:
    """Return the methods with results as rows, and columns of datasets or settings, beside published ones."""
    here = {title: {key[2]: e for key, e in part.entries.items() if key[:2] == at} for title, at in columns.items()}
    has_paper = {title: number == "score" and any(e.published for e in own.values()) for title, own in here.items()}
    header, rows = ["method"], []
    for title in (title for title, own in here.items() if own):
        header += [title, f"*{title} paper*", "diff"] if has_paper[title] else [title]
    for method in part.table.file.methods:
        row = [method]
        for title, own in here.items():
            entry = own.get(method)
            row += [_score(entry, number)] if own else []
            if has_paper[title]:
                published, difference = (entry.published, entry.difference) if entry else (None, None)
                row += [f"*{_published(published)}*" if published else MISSING]
                row += [MISSING if difference is None else f"{difference:+.1f}"]
        if set(row[1:]) != {MISSING}:
            rows.append(row)
    return [header, *rows] if rows else []


def data_sentences(part: MeasuredTable, datasets: Sequence[str]) -> Iterator[str]:
    """Yield one line per dataset: how many test images are also in the pool, and remarks about the data."""
    for dataset in datasets:
        cells = [cell for key, entry in part.entries.items() if key[0] == dataset for cell in entry.cells]
        if not cells:
            yield f"{dataset}: not measured yet."
            continue
        n_shared, n_test = max((int(cell["leakage"]), int(cell["counts"]["test"])) for cell in cells)
        told = f"{n_shared or 'none'} of the {n_test} test images {'are' if n_shared > 1 else 'is'} also in the pool."
        yield " ".join((f"{dataset}: {told}", *_remarks(cells)))


def _remarks(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(remark for cell in cells for remark in cell["remarks"]))


def as_csv(measured: MeasuredSuite) -> str:
    """Return every number with its deviation, one row per table, dataset, setting and method."""
    header = ["table", "dataset", "setting", "method", "seeds", "seeds_planned"]
    header += [f"{name}{suffix}" for name in NUMBERS for suffix in ("", "_deviation")]
    header += ["published_table", "published", "published_deviation", "difference", "leakage", "n_test", "remarks"]
    rows: list[list[object]] = []
    for part in measured.tables:
        for key, entry in part.entries.items():
            numbers = [entry.numbers.get(name) for name in NUMBERS]
            pairs = [value for number in numbers for value in (number[:2] if number else (None, None))]
            shared = [max((cell["leakage"] for cell in entry.cells), default="")]
            shared += [max((cell["counts"]["test"] for cell in entry.cells), default="")]
            verdicts = Counter(cell["health"]["verdict"] for cell in entry.cells if cell["health"])
            rows.append(
                [
                    *(part.table.name, *key, len(entry.cells), entry.n_seeds, *map(_digits, pairs)),
                    part.table.file.published if entry.published else "",
                    *map(_digits, (*(entry.published or (None, None)), entry.difference)),
                    *(*shared, " ".join(_remarks(entry.cells))),
                    " ".join(f"{verdict}:{n}" for verdict, n in sorted(verdicts.items())),
                ]
            )
    return "".join(csv_table([*header, "health"], rows))


def _score(entry: Entry | None, name: str) -> str:
    """Return `mean ± deviation` of a number, with the number of finished seeds if some are missing."""
    number = entry.numbers.get(name) if entry else None
    if entry is None or number is None:
        return MISSING
    missing = f" ({number.n} of {entry.n_seeds})" if number.n < entry.n_seeds else ""
    return f"{number.mean:.1f}{'' if number.deviation is None else f' ± {number.deviation:.1f}'}{missing}"


def _published(number: PublishedNumber) -> str:
    """Return a published number as it was printed."""
    return f"{number.mean}" if number.deviation is None else f"{number.mean:.2f} ± {number.deviation:.2f}"


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
