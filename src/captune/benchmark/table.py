"""Aggregation of finished cells: means and standard deviations over seeds, beside the published numbers."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captune.benchmark.cells import Results
from captune.benchmark.suite import Place, PublishedNumber, Suite, Table, published_number
from captune.core.files import write_whole


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
    """Write a suite's tables as Markdown, LaTeX and CSV and return the files."""
    from captune.benchmark.formats import as_csv, as_latex, as_markdown

    texts = {"md": as_markdown(measured, command), "tex": as_latex(measured), "csv": as_csv(measured)}
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
