"""Tables of finished cells: means over seeds, with published numbers in columns of their own."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from captune.benchmark.cells import Results
from captune.benchmark.splits import SETTING_TITLES
from captune.benchmark.suite import PublishedNumber, Suite, Table, published_tables
from captune.core.files import DIGEST, write_whole
from captune.core.files import table as csv_table

Content = Mapping[str, Any]
"""The file of a finished cell."""
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


def _percent(*keys: str | int) -> Callable[[Content], float | None]:
    """Return the function that reads a share, by its place in a cell, in percent."""

    def read(content: Any) -> float | None:  # noqa: ANN401 (parts of a cell)
        for key in keys:
            content = content[key] if content else None
        return None if content is None else 100.0 * content

    return read


def _seconds(content: Content) -> float:
    """Return the seconds without embedding, which the first cell does for all methods."""
    return float(content["seconds"]["adapt"]) - float(content["seconds"]["embedding"])


METRICS = ("accuracy", "balanced_accuracy", "lowest_five", "seen_accuracy", "unseen_accuracy", "harmonic_mean", "ece")
NUMBERS: Mapping[str, Callable[[Content], float | None]] = {
    "score": _percent("score"),
    **{name: _percent("metrics", name) for name in METRICS},
    "pool_accuracy": _percent("pool", "accuracy"),
    "pool_ece": _percent("pool", "ece"),
    "kept_accuracy": _percent("kept", "metrics", "accuracy"),
    "kept_pool_accuracy": _percent("kept", "pool", "accuracy"),
    "adapted_is_kept": lambda c: 100.0 * (c["kept"]["classifier"] == "adapted"),
    "mismatched": lambda c: None if c["mismatched"] is None else float(len(c["mismatched"])),
    "first_precision": _percent("pseudo_labels", 0, "precision"),
    "last_precision": _percent("pseudo_labels", -1, "precision"),
    "last_images": lambda c: float(c["pseudo_labels"][-1]["images"]) if c["pseudo_labels"] else None,
    "minutes": lambda c: _seconds(c) / 60,
    "seconds": _seconds,
    "memory_mb": lambda c: c["peak_memory_mb"]["process"],
}
"""How each number is read from a cell's file; accuracies in percent.

Numbers are those of the adapted classifier, `kept` those of what default settings keep: zero-shot unless the health
check finds that adaptation helps. The pool are the unlabeled images.
"""


class Number(NamedTuple):
    """The mean over seeds, and the standard deviation (n - 1) if there are at least two."""

    mean: float
    deviation: float | None
    n: int


@dataclass(frozen=True)
class Row:
    """The results of one method on one dataset and learning setting of a table.

    Attributes:
        settings: All settings of the cells, with those of their split.
        cells: The finished ones of `n_seeds` planned cells, in the order of the seeds.
    """

    table: str
    dataset: str
    setting: str
    method: str
    settings: Mapping[str, Any]
    cells: Sequence[Content] = ()
    n_seeds: int = 1
    published: PublishedNumber | None = None

    def number(self, name: str) -> Number | None:
        """Return one of `NUMBERS` over the seeds that have it."""
        values = [value for cell in self.cells if (value := NUMBERS[name](cell)) is not None]
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return None
        return Number(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))

    def mean(self, name: str) -> float | None:
        """Return the mean of one of `NUMBERS` over the seeds that have it."""
        found = self.number(name)
        return found and found.mean

    @property
    def difference(self) -> float | None:
        """Return our mean score minus the published one, in percentage points."""
        score = self.mean("score")
        return None if score is None or self.published is None else score - self.published.mean

    def remarks(self) -> list[str]:
        """Return what the cells say about their data, each remark once."""
        return list(dict.fromkeys(remark for cell in self.cells for remark in cell["remarks"]))


def read_rows(suite: Suite, results: Results) -> list[Row]:
    """Return the rows of all tables of a suite, with the results of every finished cell."""
    read = {cell.name: results.read(cell) for cell in suite.cells()}
    rows: list[Row] = []
    for table in suite.tables:
        planned: dict[tuple[str, str, str], list[Any]] = {}
        for place, cell in table.cells.items():
            planned.setdefault((place.dataset, place.setting, place.method), []).append(cell)
        for key, cells in planned.items():
            finished = [content for cell in cells if (content := read[cell.name]) is not None]
            settings = {**cells[0].settings, **asdict(cells[0].split)}
            rows.append(Row(table.name, *key, settings, finished, len(cells), table.published(*key)))
    return rows


def finished_cells(rows: Sequence[Row]) -> list[Content]:
    """Return every finished cell once."""
    return list({cell[DIGEST]: cell for row in rows for cell in row.cells}.values())


def write_tables(suite: Suite, rows: Sequence[Row], folder: Path, command: str) -> list[Path]:
    """Write a suite's tables as Markdown, and every number as CSV, and return the files."""
    texts = {"md": as_markdown(suite, rows, command), "csv": as_csv(suite, rows)}
    files = {folder / f"{suite.name}.{suffix}": text for suffix, text in texts.items()}
    for path, text in files.items():
        write_whole(path, text)
    return list(files)


ORIGINS: Mapping[str, Callable[[Content], object]] = {
    "captune": lambda e: e["versions"]["captune"],
    "commit": lambda e: e["commit"] and e["commit"][:9] + e["commit"][40:],
    "torch": lambda e: e["versions"]["torch"],
    "device": lambda e: e["device"],
}
"""What is told about the environment of the cells."""


def as_markdown(suite: Suite, rows: Sequence[Row], command: str) -> str:
    """Return the page of a suite: scores first, then details."""
    finished = finished_cells(rows)
    found = {what: {read(cell["environment"]) for cell in finished} for what, read in ORIGINS.items()}
    known = {what: sorted(str(value) for value in values if value) for what, values in found.items()}
    origins = "; ".join(f"{what} {', '.join(values)}" for what, values in known.items() if values)
    lines = [
        f"# {suite.title}",
        "",
        f"{len(finished)} of {len(suite.cells())} cells. {origins}. Written by:",
        "",
        f"    {command}",
        "",
        "Test accuracy in percent, mean ± standard deviation (n − 1) over seeds. TRZSL is the harmonic mean of seen "
        "and unseen accuracy, both predicted over all classes.",
    ]
    for table in suite.tables:
        own = [row for row in rows if row.table == table.name]
        lines += ["", f"## {table.file.title or table.name}"] if len(suite.tables) > 1 else []
        if label := table.file.published:
            title = f"{published_tables()[label]['title']}; {label}"
            lines += ["", f"*paper*: published numbers ({title}), not ours; *diff*: ours − paper."]
        for heading, grid, datasets in _score_grids(table, own):
            lines += ["", f"**{heading}**"] if heading else []
            header, *others = (f"| {' | '.join(word.replace('|', '∣') for word in line)} |" for line in grid)
            lines += ["", header, f"|{'---|' * len(grid[0])}", *others, ""]
            lines += [_about_data(dataset, own) for dataset in datasets]
    return "\n".join(lines) + "\n"


def _score_grids(table: Table, rows: Sequence[Row]) -> Iterator[tuple[str, list[list[str]], list[str]]]:
    """Yield heading, grid and datasets: one grid if there is a single learning setting, else one per dataset."""
    file = table.file
    if len(file.settings) == 1:
        for number in file.shows:
            columns = {dataset: [row for row in rows if row.dataset == dataset] for dataset in file.datasets}
            if grid := _score_grid(file.methods, columns, number):
                heading = SHOWN_TITLES[number].format(SETTING_TITLES[file.settings[0]])
                yield heading, grid, list(file.datasets) if number == "score" else []
        return
    for dataset in file.datasets:
        of_dataset = [row for row in rows if row.dataset == dataset]
        columns = {SETTING_TITLES[one]: [row for row in of_dataset if row.setting == one] for one in file.settings}
        if grid := _score_grid(file.methods, columns):
            yield (dataset if len(file.datasets) > 1 else ""), grid, [dataset]


def _score_grid(methods: Mapping[str, Any], columns: Mapping[str, list[Row]], name: str = "score") -> list[list[str]]:
    """Return a header and the methods with results, in columns of datasets or settings beside published ones."""
    columns = {title: rows for title, rows in columns.items() if rows}
    has_paper = {title: name == "score" and any(row.published for row in rows) for title, rows in columns.items()}
    header, lines = ["method"], []
    for title in columns:
        header += [title, f"*{title} paper*", "diff"] if has_paper[title] else [title]
    for method in methods:
        line = [method]
        for title, rows in columns.items():
            row = next((row for row in rows if row.method == method), None)
            line.append(_shown(row, name))
            if has_paper[title]:
                published, difference = (row.published, row.difference) if row else (None, None)
                line.append(f"*{_published(published)}*" if published else MISSING)
                line.append(MISSING if difference is None else f"{difference:+.1f}")
        if set(line[1:]) != {MISSING}:
            lines.append(line)
    return [header, *lines] if lines else []


def _about_data(dataset: str, rows: Sequence[Row]) -> str:
    """Return how many test images of a dataset are also in the pool, and remarks about the data."""
    measured = [row for row in rows if row.dataset == dataset and row.cells]
    if not measured:
        return f"- {dataset}: not measured yet."
    n_shared, n_test = max((int(c["leakage"]), int(c["counts"]["test"])) for row in measured for c in row.cells)
    told = f"{n_shared or 'none'} of the {n_test} test images {'are' if n_shared > 1 else 'is'} also in the pool."
    return " ".join((f"- {dataset}: {told}", *dict.fromkeys(words for row in measured for words in row.remarks())))


def as_csv(suite: Suite, rows: Sequence[Row]) -> str:
    """Return every number with its deviation, one line per table, dataset, setting and method."""
    labels = {table.name: table.file.published for table in suite.tables}
    lines: list[dict[str, object]] = []
    for row in rows:
        line: dict[str, object] = {axis: getattr(row, axis) for axis in ("table", "dataset", "setting", "method")}
        line |= {"seeds": len(row.cells), "seeds_planned": row.n_seeds}
        for name in NUMBERS:
            mean, deviation, _ = row.number(name) or (None, None, 0)
            line |= {name: _digits(mean), f"{name}_deviation": _digits(deviation)}
        mean, deviation = row.published or (None, None)
        line["published_table"] = labels[row.table] if row.published else ""
        line |= {"published": _digits(mean), "published_deviation": _digits(deviation)}
        line["difference"] = _digits(row.difference)
        line["leakage"] = max((cell["leakage"] for cell in row.cells), default="")
        line["n_test"] = max((cell["counts"]["test"] for cell in row.cells), default="")
        verdicts = Counter(cell["health"]["verdict"] for cell in row.cells if cell["health"])
        line["remarks"] = " ".join(row.remarks())
        line["health"] = " ".join(f"{verdict}:{n}" for verdict, n in sorted(verdicts.items()))
        lines.append(line)
    return "".join(csv_table(list(lines[0]), (list(line.values()) for line in lines)))


def _shown(row: Row | None, name: str) -> str:
    """Return `mean ± deviation` of a number, with the number of finished seeds if some are missing."""
    number = row.number(name) if row else None
    if row is None or number is None:
        return MISSING
    missing = f" ({number.n} of {row.n_seeds})" if number.n < row.n_seeds else ""
    return f"{number.mean:.1f}{'' if number.deviation is None else f' ± {number.deviation:.1f}'}{missing}"


def _published(number: PublishedNumber) -> str:
    """Return a published number as it was printed."""
    return f"{number.mean}" if number.deviation is None else f"{number.mean:.2f} ± {number.deviation:.2f}"


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
