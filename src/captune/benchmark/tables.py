"""Tables of finished cells: means over seeds, with published numbers in columns of their own."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captune.benchmark.cells import Results
from captune.benchmark.splits import SETTING_TITLES
from captune.benchmark.suite import Place, PublishedNumber, Suite, Table, published_number, published_tables
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


@dataclass(frozen=True)
class Number:
    """The mean over seeds, and the standard deviation (n - 1) if there are at least two."""

    mean: float
    deviation: float | None
    n: int


@dataclass(frozen=True)
class Entry:
    """The results of one dataset, setting and method over `n_seeds` planned seeds."""

    n_seeds: int
    numbers: Mapping[str, Number]
    published: PublishedNumber | None = None
    verdicts: Mapping[str, int] = field(default_factory=dict)
    leakage: int | None = None
    """Largest number of test images that are also in the pool; None if no seed is finished."""
    n_test: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Return our mean minus the published one, in percentage points."""
        score = self.numbers.get("score")
        return None if score is None or self.published is None else score.mean - self.published.mean


@dataclass(frozen=True, eq=False)
class MeasuredTable:
    """A table of a suite with its results."""

    table: Table
    entries: Mapping[tuple[str, str, str], Entry]
    """Results by dataset, setting and method."""


@dataclass(frozen=True, eq=False)
class MeasuredSuite:
    """A suite with its results and their origin."""

    suite: Suite
    tables: Sequence[MeasuredTable]
    n_cells: int
    n_finished: int
    origins: Mapping[str, Sequence[str]]
    """Distinct versions, commits and devices of the cells."""


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
        groups: dict[tuple[str, str, str], list[Place]] = {}
        for place in table.cells:
            groups.setdefault((place.dataset, place.setting, place.method), []).append(place)
        entries = {
            key: _entry(table, places, [finished[name] for p in places if (name := table.cells[p].name) in finished])
            for key, places in groups.items()
        }
        tables.append(MeasuredTable(table, entries))
    return MeasuredSuite(suite, tables, len(read), len(finished), _origins(list(finished.values())))


def write_tables(measured: MeasuredSuite, folder: Path, command: str) -> list[Path]:
    """Write a suite's tables as Markdown, and every number as CSV, and return the files."""
    texts = {"md": as_markdown(measured, command), "csv": as_csv(measured)}
    files = {folder / f"{measured.suite.name}.{suffix}": text for suffix, text in texts.items()}
    for path, text in files.items():
        write_whole(path, text)
    return list(files)


def _entry(table: Table, places: Sequence[Place], contents: Sequence[Mapping[str, Any]]) -> Entry:
    values = {name: [value for c in contents if (value := read(c)) is not None] for name, read in NUMBERS.items()}
    numbers = {name: number for name, found in values.items() if (number := over_seeds(found)) is not None}
    place, published = places[0], None
    if table.file.published:
        method = table.published_name("methods", place.method)
        dataset = table.published_name("datasets", place.dataset)
        published = published_number(table.file.published, method, dataset, place.setting)
    verdicts = Counter(content["health"]["verdict"] for content in contents if content["health"])
    leakage = max((int(content["leakage"]) for content in contents), default=None)
    n_test = max((int(content["counts"]["test"]) for content in contents), default=0)
    remarks = dict.fromkeys(remark for content in contents for remark in content["remarks"])
    return Entry(len(places), numbers, published, dict(verdicts), leakage, n_test, tuple(remarks))


def _origins(contents: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    def each(read: Callable[[Mapping[str, Any]], object]) -> list[str]:
        return sorted({str(value) for content in contents if (value := read(content["environment"])) is not None})

    return {
        "captune": each(lambda e: e["versions"]["captune"]),
        "commit": each(lambda e: e["commit"][:9] + e["commit"][40:] if e["commit"] else None),
        "torch": each(lambda e: e["versions"]["torch"]),
        "device": each(lambda e: e["device"]),
    }


def _percent(value: float | None) -> float | None:
    return None if value is None else 100.0 * value


def as_markdown(measured: MeasuredSuite, command: str) -> str:
    """Return the page of a suite: scores first, then details."""
    origins = "; ".join(f"{what} {', '.join(values)}" for what, values in measured.origins.items() if values)
    lines = [
        f"# {measured.suite.title}",
        "",
        f"{measured.n_finished} of {measured.n_cells} cells. {origins}. Written by:",
        "",
        f"    {command}",
        "",
        "Test accuracy in percent, mean ± standard deviation (n − 1) over seeds. TRZSL is the harmonic mean of seen "
        "and unseen accuracy, both predicted over all classes.",
    ]
    for part in measured.tables:
        lines += ["", *_markdown_part(part, len(measured.tables) > 1)]
    return "\n".join(lines) + "\n"


def _markdown_part(part: MeasuredTable, has_heading: bool) -> Iterator[str]:
    file = part.table.file
    if has_heading:
        yield from (f"## {file.title or part.table.name}", "")
    if file.published:
        title = published_tables()[file.published]["title"]
        yield from (
            f"*paper*: published numbers ({title}; {file.published}), not ours; *diff*: ours − paper.",
            "",
        )
    for heading, grid, datasets in score_grids(part):
        yield from ([f"**{heading}**", ""] if heading else [])
        yield from (*_pipes(grid), "")
        yield from (*(f"- {sentence}" for sentence in data_sentences(part, datasets)), "")


def score_grids(part: MeasuredTable) -> Iterator[tuple[str, Grid, list[str]]]:
    """Yield heading, grid and datasets: one grid if there is a single learning setting, else one per dataset."""
    file = part.table.file
    if len(file.settings) == 1:
        setting = file.settings[0]
        columns = [(dataset, (dataset, setting)) for dataset in file.datasets]
        for number in file.shows:
            if grid := _score_grid(part, columns, number):
                heading = SHOWN_TITLES[number].format(SETTING_TITLES[setting])
                yield heading, grid, list(file.datasets) if number == "score" else []
        return
    for dataset in file.datasets:
        columns = [(SETTING_TITLES[setting], (dataset, setting)) for setting in file.settings]
        if grid := _score_grid(part, columns):
            yield (dataset if len(file.datasets) > 1 else ""), grid, [dataset]


def _score_grid(part: MeasuredTable, columns: Sequence[tuple[str, tuple[str, str]]], number: str = "score") -> Grid:
    entries = part.entries
    columns = [column for column in columns if any(key[:2] == column[1] for key in entries)]
    has_paper = {
        place: number == "score" and any(e.published for key, e in entries.items() if key[:2] == place)
        for _, place in columns
    }
    header = ["method"]
    for title, place in columns:
        header += [title, f"*{title} paper*", "diff"] if has_paper[place] else [title]
    rows = []
    for method in part.table.file.methods:
        row = [method]
        for _, place in columns:
            entry = entries.get((*place, method))
            row.append(show_score(entry, number))
            if has_paper[place]:
                published, difference = (entry.published, entry.difference) if entry else (None, None)
                row += [f"*{show_published(published)}*" if published else MISSING]
                row += [MISSING if difference is None else f"{difference:+.1f}"]
        if any(word != MISSING for word in row[1:]):
            rows.append(row)
    return [header, *rows] if rows else []


def data_sentences(part: MeasuredTable, datasets: Sequence[str]) -> Iterator[str]:
    """Yield one line per dataset: how many test images are also in the pool, and remarks about the data."""
    for dataset in datasets:
        entries = [entry for key, entry in part.entries.items() if key[0] == dataset]
        counts = [(entry.leakage, entry.n_test) for entry in entries if entry.leakage is not None]
        if not counts:
            yield f"{dataset}: not measured yet."
            continue
        n_shared, n_test = max(counts)
        remarks = dict.fromkeys(remark for entry in entries for remark in entry.remarks)
        leakage = (
            f"{n_shared or 'none'} of the {n_test} test images {'are' if n_shared > 1 else 'is'} also in the pool."
        )
        yield " ".join((f"{dataset}: {leakage}", *remarks))


def as_csv(measured: MeasuredSuite) -> str:
    """Return every number with its deviation, one row per table, dataset, setting and method."""
    header = ["table", "dataset", "setting", "method", "seeds", "seeds_planned"]
    header += [f"{name}{suffix}" for name in NUMBERS for suffix in ("", "_deviation")]
    header += ["published_table", "published", "published_deviation", "difference", "leakage", "n_test", "remarks"]
    header += ["health"]
    rows: list[list[object]] = []
    for part in measured.tables:
        for key, entry in part.entries.items():
            score, published = entry.numbers.get("score"), entry.published or PublishedNumber(math.nan)
            numbers = [entry.numbers.get(name) for name in NUMBERS]
            pairs = [(number.mean, number.deviation) if number else (None, None) for number in numbers]
            row = [part.table.name, *key, score.n if score else 0, entry.n_seeds]
            row += [_digits(value) for pair in pairs for value in pair]
            row += [part.table.file.published if entry.published else ""]
            row += [_digits(value) for value in (*published, entry.difference)]
            row += [""] * 3 if entry.leakage is None else [entry.leakage, entry.n_test, " ".join(entry.remarks)]
            row += [" ".join(f"{verdict}:{n}" for verdict, n in sorted(entry.verdicts.items()))]
            rows.append(row)
    return "".join(csv_table(header, rows))


def show_score(entry: Entry | None, name: str = "score") -> str:
    """Return `mean ± deviation` of a number, with the number of finished seeds if some are missing."""
    number = entry.numbers.get(name) if entry else None
    if entry is None or number is None:
        return MISSING
    spread = "" if number.deviation is None else f" ± {number.deviation:.1f}"
    missing = f" ({number.n} of {entry.n_seeds})" if number.n < entry.n_seeds else ""
    return f"{number.mean:.1f}{spread}{missing}"


def show_published(number: PublishedNumber) -> str:
    """Return a published number as it was printed."""
    return f"{number.mean}" if number.deviation is None else f"{number.mean:.2f} ± {number.deviation:.2f}"


def _pipes(grid: Grid) -> Iterator[str]:
    header, *rows = (f"| {' | '.join(word.replace('|', '∣') for word in row)} |" for row in grid)
    yield from (header, f"|{'---|' * len(grid[0])}", *rows)


def _digits(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4f}"
