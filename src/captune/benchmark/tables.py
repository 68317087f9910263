"""Tables of finished cells: means over seeds, with published numbers in columns of their own."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from captune.benchmark.cells import Results
from captune.benchmark.suite import Number, Suite, Table, published_tables
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
    published: Number | None = None

    def number(self, name: str) -> Number | None:
        """Return one of `NUMBERS` over the seeds that have it."""
        values = map(NUMBERS[name], self.cells)
        known = [value for value in values if value is not None and not math.isnan(value)]
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


def as_markdown(suite: Suite, rows: Sequence[Row], command: str) -> str:
    """Return the page of a suite: scores first, then details."""
    finished = finished_cells(rows)
    lines = [
        f"# {suite.title}",
        "",
        f"{len(finished)} of {len(suite.cells())} cells. {_origins(finished)}. Written by:",
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
        for heading, name, columns, datasets in _grids(table, own):
            if grid := _grid(columns, name):
                header, *others = (f"| {' | '.join(word.replace('|', '∣') for word in line)} |" for line in grid)
                lines += ["", f"**{heading}**"] if heading else []
                lines += ["", header, f"|{'---|' * len(grid[0])}", *others, ""]
                lines += [_about_data(dataset, own) for dataset in datasets]
    return "\n".join(lines) + "\n"


def _origins(finished: Sequence[Content]) -> str:
    """Return versions, commits and devices of the cells."""
    found: dict[str, set[str]] = {"captune": set(), "commit": set(), "torch": set(), "device": set()}
    for facts in (cell["environment"] for cell in finished):
        found["captune"].add(facts["versions"]["captune"])
        found["commit"] |= {facts["commit"][:9] + facts["commit"][40:]} if facts["commit"] else set()
        found["torch"].add(facts["versions"]["torch"])
        found["device"].add(facts["device"])
    return "; ".join(f"{what} {', '.join(sorted(values))}" for what, values in found.items() if values)


def _grids(table: Table, rows: Sequence[Row]) -> Iterator[tuple[str, str, dict[str, list[Row]], list[str]]]:
    """Yield heading, number, rows by column and datasets: a grid of all datasets or, with several settings, of each."""
    file = table.file
    if len(file.settings) == 1:
        columns = {dataset: [row for row in rows if row.dataset == dataset] for dataset in file.datasets}
        for name in file.shows:
            heading = SHOWN_TITLES[name].format(file.settings[0].upper())
            yield heading, name, columns, list(file.datasets) if name == "score" else []
        return
    for dataset in file.datasets:
        places = {setting.upper(): (dataset, setting) for setting in file.settings}
        columns = {title: [r for r in rows if (r.dataset, r.setting) == place] for title, place in places.items()}
        yield dataset if len(file.datasets) > 1 else "", "score", columns, [dataset]


def _grid(columns: Mapping[str, list[Row]], name: str) -> list[list[str]]:
    """Return a header and the methods with results, in columns beside the published ones; every column has a method."""
    header, parts = ["method"], [[[row.method] for row in next(filter(None, columns.values()), [])]]
    for title, rows in columns.items():
        has_paper = name == "score" and any(row.published for row in rows)
        header += [title, f"*{title} paper*", "diff"] if has_paper else [title] if rows else []
        parts += [[_entries(row, name, has_paper) for row in rows]] if rows else []
    lines = [list(chain(*entries)) for entries in zip(*parts, strict=True)]
    lines = [line for line in lines if set(line[1:]) != {MISSING}]
    return [header, *lines] if lines else []


def _entries(row: Row, name: str, has_paper: bool) -> list[str]:
    """Return a number of a row, with that of the paper and the difference."""
    ours, theirs, shown, printed = row.number(name), row.published, MISSING, MISSING
    if ours:
        shown = f"{ours.mean:.1f}" if ours.deviation is None else f"{ours.mean:.1f} ± {ours.deviation:.1f}"
        shown += f" ({ours.n_seeds} of {row.n_seeds})" if ours.n_seeds < row.n_seeds else ""
    if theirs:
        printed = f"*{theirs.mean}*" if theirs.deviation is None else f"*{theirs.mean:.2f} ± {theirs.deviation:.2f}*"
    difference = MISSING if row.difference is None else f"{row.difference:+.1f}"
    return [shown, printed, difference] if has_paper else [shown]


def _about_data(dataset: str, rows: Sequence[Row]) -> str:
    """Return how many test images of a dataset are also in the pool, and remarks about the data."""
    cells = [cell for row in rows if row.dataset == dataset for cell in row.cells]
    if not cells:
        return f"- {dataset}: not measured yet."
    n_shared, n_test = max((int(cell["leakage"]), int(cell["counts"]["test"])) for cell in cells)
    told = f"{n_shared or 'none'} of the {n_test} test images {'are' if n_shared > 1 else 'is'} also in the pool."
    return " ".join((f"- {dataset}: {told}", *_remarks(cells)))


def _remarks(cells: Sequence[Content]) -> list[str]:
    """Return what cells say about their data, each remark once."""
    return list(dict.fromkeys(remark for cell in cells for remark in cell["remarks"]))


def as_csv(suite: Suite, rows: Sequence[Row]) -> str:
    """Return every number with its deviation, one line per table, dataset, setting and method."""
    labels = {table.name: table.file.published for table in suite.tables}
    lines: list[dict[str, object]] = []
    for row in rows:
        line: dict[str, object] = {axis: getattr(row, axis) for axis in ("table", "dataset", "setting", "method")}
        line |= {"seeds": len(row.cells), "seeds_planned": row.n_seeds}
        for name in NUMBERS:
            line |= _digits(name, row.number(name))
        line["published_table"] = labels[row.table] if row.published else ""
        line |= _digits("published", row.published)
        line["difference"] = "" if row.difference is None else f"{row.difference:.4f}"
        line["leakage"] = max((cell["leakage"] for cell in row.cells), default="")
        line["n_test"] = max((cell["counts"]["test"] for cell in row.cells), default="")
        verdicts = Counter(cell["health"]["verdict"] for cell in row.cells if cell["health"])
        line["remarks"] = " ".join(_remarks(row.cells))
        line["health"] = " ".join(f"{verdict}:{n}" for verdict, n in sorted(verdicts.items()))
        lines.append(line)
    return "".join(csv_table(list(lines[0]), (list(line.values()) for line in lines)))


def _digits(name: str, number: Number | None) -> dict[str, object]:
    mean, deviation = number[:2] if number else (None, None)
    values = {name: mean, f"{name}_deviation": deviation}
    return {key: "" if value is None else f"{value:.4f}" for key, value in values.items()}
