"""Result tables as Markdown, LaTeX and CSV; published numbers are always in separate columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from captune.benchmark.splits import SETTING_TITLES
from captune.benchmark.suite import PublishedNumber, published_tables
from captune.benchmark.table import NUMBERS, Entry, MeasuredSuite, MeasuredTable, Number
from captune.core.files import table as csv_table

MISSING = "–"
TEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "_%&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "–": "--", "−": "$-$", "→": r"$\to$"}
)
"""LaTeX escapes."""
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
    details = detail_grid(part)
    if len(details) > 1:
        yield from ("<details><summary>Balance, pseudo-labels, health, time and memory</summary>", "", *_pipes(details))
        yield from ("", "</details>", "")
    yield from ("Minutes per run without embedding, which all methods share (mean over settings and seeds):", "")
    yield from (*_pipes(minutes_grid(part)), "")
    found = mismatch_grid(part)
    if len(found) > 1:
        yield from ("Number of misleading class names found (mean over seeds):", "", *_pipes(found), "")


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


def detail_grid(part: MeasuredTable) -> Grid:
    """Return one row of details per finished dataset, setting and method, without columns that are empty."""
    metrics = {
        "accuracy": "accuracy",
        "balanced": "balanced_accuracy",
        "lowest five": "lowest_five",
        "seen": "seen_accuracy",
        "unseen": "unseen_accuracy",
        "calibration error": "ece",
        "accuracy, pool": "pool_accuracy",
        "calibration error, pool": "pool_ece",
        "accuracy, kept": "kept_accuracy",
        "accuracy, pool, kept": "kept_pool_accuracy",
    }
    header = ["dataset", "setting", "method", *metrics]
    header += ["pseudo-labels right, first → last", "health", "seconds", "memory MB"]
    rows = []
    for (dataset, setting, method), entry in part.entries.items():
        get = entry.numbers.get
        if get("score") is None:
            continue
        first, last = get("first_precision"), get("last_precision")
        precision = f"{first.mean:.1f} → {last.mean:.1f}" if first and last else MISSING
        verdicts = ", ".join(f"{verdict} {n}" for verdict, n in sorted(entry.verdicts.items())) or MISSING
        cost = [show(get("seconds")), show(get("memory_mb"), 0, deviation=False)]
        scores = [show(get(name)) for name in metrics.values()]
        rows.append([dataset, SETTING_TITLES[setting], method, *scores, precision, verdicts, *cost])
    is_used = [not rows or any(row[i] != MISSING for row in rows) for i in range(len(header))]
    return [[word for word, used in zip(row, is_used, strict=True) if used] for row in (header, *rows)]


def minutes_grid(part: MeasuredTable) -> Grid:
    """Return methods x datasets with the mean minutes of a run over settings."""
    file, rows = part.table.file, []
    for method in file.methods:
        means = [_means(part, "minutes", dataset=dataset, method=method) for dataset in file.datasets]
        rows.append([method, *(f"{sum(found) / len(found):.1f}" if found else MISSING for found in means)])
    return [["method", *file.datasets], *rows]


def mismatch_grid(part: MeasuredTable) -> Grid:
    """Return datasets x settings with the number of misleading class names that concept alignment found."""
    file, rows = part.table.file, []
    for dataset in file.datasets:
        means = [_means(part, "mismatched", dataset=dataset, setting=setting) for setting in file.settings]
        if any(means):
            rows.append(
                [dataset, *(" / ".join(f"{x:.1f}" for x in dict.fromkeys(found)) or MISSING for found in means)]
            )
    return [["dataset", *(SETTING_TITLES[setting] for setting in file.settings)], *rows]


def _means(part: MeasuredTable, name: str, **place: str) -> list[float]:
    """Return the means of a number at all matching places of a table."""
    keys = [dict(zip(("dataset", "setting", "method"), key, strict=True)) for key in part.entries]
    entries = [entry for key, entry in zip(keys, part.entries.values(), strict=True) if place.items() <= key.items()]
    return [entry.numbers[name].mean for entry in entries if name in entry.numbers]


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


def as_latex(measured: MeasuredSuite) -> str:
    """Return the scores as booktabs tables, with published numbers in italics."""
    lines = ["% requires the booktabs package"]
    for part in measured.tables:
        for heading, grid, datasets in score_grids(part):
            title = part.table.file.title or measured.suite.title
            caption = f"{title}: {heading}" if heading else title
            notes = " ".join(data_sentences(part, datasets))
            lines += ["", r"\begin{table}", r"\centering", rf"\caption{{{_tex(caption)}. {_tex(notes)}}}"]
            lines += [rf"\begin{{tabular}}{{l{'c' * (len(grid[0]) - 1)}}}", r"\toprule", _tex_row(grid[0]), r"\midrule"]
            lines += [_tex_row(row) for row in grid[1:]]
            lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


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


def show(number: Number | None, digits: int = 1, deviation: bool = True) -> str:
    """Return `mean ± deviation`."""
    if number is None:
        return MISSING
    spread = f" ± {number.deviation:.{digits}f}" if deviation and number.deviation is not None else ""
    return f"{number.mean:.{digits}f}{spread}"


def show_score(entry: Entry | None, name: str = "score") -> str:
    """Return the score or another number, with the number of finished seeds if some are missing."""
    number = entry.numbers.get(name) if entry else None
    missing = f" ({number.n} of {entry.n_seeds})" if entry and number and number.n < entry.n_seeds else ""
    return show(number) + missing


def show_published(number: PublishedNumber) -> str:
    """Return a published number as it was printed."""
    return f"{number.mean}" if number.deviation is None else f"{number.mean:.2f} ± {number.deviation:.2f}"


def _pipes(grid: Grid) -> Iterator[str]:
    header, *rows = (f"| {' | '.join(word.replace('|', '∣') for word in row)} |" for row in grid)
    yield from (header, f"|{'---|' * len(grid[0])}", *rows)


def _tex_row(row: Sequence[str]) -> str:
    return " & ".join(_tex(word) for word in row) + r" \\"


def _tex(text: str) -> str:
    is_published = text.startswith("*") and text.endswith("*") and len(text) > 1
    text = (text[1:-1] if is_published else text).translate(TEX)
    return rf"\textit{{{text}}}" if is_published else text


def _digits(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4f}"
