"""Cells become tables: means and deviations over seeds, with the published number beside ours, clearly marked."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captune.benchmark.published import PublishedNumber, published_number
from captune.benchmark.results import Results
from captune.benchmark.suite import Place, Suite, Table
from captune.core.files import write_whole


@dataclass(frozen=True)
class Number:
    """The mean over seeds, and their standard deviation (n - 1) where there are at least two."""

    mean: float
    deviation: float | None
    n: int


@dataclass(frozen=True)
class Entry:
    """What was measured in one place of a table.

    Attributes:
        n_wanted: How many seeds there should be.
        numbers: Every number that the seeds have, over the seeds.
        published: What the paper prints there, if anything.
        verdicts: What the health check said, with how often.
        leakage: Test images whose content is also in the pool, the most that any seed met; None where none is measured.
        n_test: Test images.
        remarks: What a reader must know of the data, each once.
    """

    n_wanted: int
    numbers: Mapping[str, Number]
    published: PublishedNumber | None = None
    verdicts: Mapping[str, int] = field(default_factory=dict)
    leakage: int | None = None
    n_test: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Return ours minus the published mean, in points."""
        score = self.numbers.get("score")
        return None if score is None or self.published is None else score.mean - self.published.mean


@dataclass(frozen=True, eq=False)
class MeasuredTable:
    """A table of a suite with what was measured for it."""

    table: Table
    entries: Mapping[tuple[str, str, str], Entry]
    """By dataset, setting and method."""


@dataclass(frozen=True, eq=False)
class MeasuredSuite:
    """A suite with what was measured for it, and with what it was measured."""

    suite: Suite
    tables: Sequence[MeasuredTable]
    n_cells: int
    n_finished: int
    origins: Mapping[str, Sequence[str]]
    """Versions, commits and devices of the cells, each value once."""


NUMBERS: Mapping[str, Callable[[Mapping[str, Any]], float | None]] = {
    "score": lambda c: _percent(c["score"]),
    "accuracy": lambda c: _percent(c["metrics"]["accuracy"]),
    "balanced_accuracy": lambda c: _percent(c["metrics"]["balanced_accuracy"]),
    "lowest_five": lambda c: _percent(c["metrics"]["lowest_five"]),
    "seen_accuracy": lambda c: _percent(c["metrics"]["seen_accuracy"]),
    "unseen_accuracy": lambda c: _percent(c["metrics"]["unseen_accuracy"]),
    "harmonic_mean": lambda c: _percent(c["metrics"]["harmonic_mean"]),
    "ece": lambda c: _percent(c["metrics"]["ece"]),
    "mismatched": lambda c: None if c["mismatched"] is None else float(len(c["mismatched"])),
    "first_precision": lambda c: _percent(c["pseudo_labels"][0]["precision"]) if c["pseudo_labels"] else None,
    "last_precision": lambda c: _percent(c["pseudo_labels"][-1]["precision"]) if c["pseudo_labels"] else None,
    "last_images": lambda c: float(c["pseudo_labels"][-1]["images"]) if c["pseudo_labels"] else None,
    # Embedding is done once for all methods by whichever cell comes first, so it is no part of a method's time.
    "minutes": lambda c: (c["seconds"]["adapt"] - c["seconds"]["embedding"]) / 60,
    "memory_mb": lambda c: c["peak_memory_mb"]["process"],
}
"""How each number is read from a cell's file; accuracies in percent."""


def over_seeds(values: Sequence[float]) -> Number | None:
    """Return mean and standard deviation (n - 1) of the values that are numbers."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    return Number(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def gather(suite: Suite, results: Results) -> MeasuredSuite:
    """Read every finished cell of a suite."""
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
    """Write a suite's tables as Markdown, LaTeX and CSV and return the files."""
    from captune.benchmark.formats import as_csv, as_latex, as_markdown

    name = measured.suite.name
    written = []
    for suffix, text in (
        ("md", as_markdown(measured, command)),
        ("tex", as_latex(measured)),
        ("csv", as_csv(measured)),
    ):
        written.append(folder / f"{name}.{suffix}")
        write_whole(written[-1], text)
    return written


def _entry(table: Table, places: Sequence[Place], contents: Sequence[Mapping[str, Any]]) -> Entry:
    numbers = {}
    for name, read in NUMBERS.items():
        values = [value for content in contents if (value := read(content)) is not None]
        number = over_seeds(values)
        if number is not None:
            numbers[name] = number
    place, published = places[0], None
    if table.file.published:
        method = table.published_name("methods", place.method)
        dataset = table.published_name("datasets", place.dataset)
        published = published_number(table.file.published, method, dataset, place.setting)
    verdicts = Counter(content["health"]["verdict"] for content in contents if content["health"])
    leakage = max((int(content["leakage"]) for content in contents), default=None)
    n_test = max((int(content["counts"]["test"]) for content in contents), default=0)
    remarks = dict.fromkeys(remark for content in contents for remark in content.get("remarks", ()))
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
