"""Tables: means over seeds, published numbers apart from ours, and what is missing said to be missing."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

from captune.benchmark.cells import Cell, Results
from captune.benchmark.suite import Suite, read_suite
from captune.benchmark.tables import Row, as_csv, as_markdown, finished_cells, read_rows, write_tables
from captune.core.files import add_digest

SUITE: dict[str, Any] = {
    "title": "Two datasets | 100 %",
    "published": "tab:main_results",
    "datasets": {"dtd": None, "patterns": None},
    "settings": ["ul", "trzsl"],
    "methods": {"zero_shot": None, "cap": {"preset": "quick"}},
}


def content_of(cell: Cell, score: float, **changes: Any) -> dict[str, Any]:
    """Return a cell's file as a run would write it, with these numbers."""
    is_cap = cell.method == "cap"
    metrics = {"accuracy": score, "balanced_accuracy": score - 0.01, "lowest_five": score / 2, "ece": 0.1}
    groups = {"seen_accuracy": None, "unseen_accuracy": None, "harmonic_mean": None}
    if cell.setting == "trzsl":
        groups = {"seen_accuracy": score + 0.1, "unseen_accuracy": score - 0.1, "harmonic_mean": score}
    steps = [{"epoch": 5, "images": 10, "precision": 0.5}, {"epoch": 50, "images": 40, "precision": 0.75}]
    return {
        "format": "captune-cell",
        "version": 3,
        "cell": dataclasses.asdict(cell),
        "inputs": {"data": "d"},
        "counts": {"test": 1880},
        "score": score,
        "metrics": {**metrics, **groups},
        "pool": {**metrics, "accuracy": score + 0.02},
        "kept": {"classifier": "zero_shot", "metrics": {**metrics, "accuracy": 0.4}, "pool": metrics},
        "leakage": 3 if cell.dataset == "dtd" else 0,
        "remarks": ["Drawn by a rule."] if cell.dataset == "dtd" else [],
        "mismatched": ["a", "b"] if is_cap else None,
        "health": {"verdict": "helpful"} if is_cap else None,
        "pseudo_labels": steps if is_cap else [],
        "seconds": {"adapt": 130.0, "embedding": 10.0, "all": 140.0},
        "peak_memory_mb": {"process": 700.0},
        "environment": {"versions": {"captune": "0.1.0", "torch": "2"}, "commit": "a" * 40 + "+", "device": "cpu"},
        **changes,
    }


def write(results: Results, cell: Cell, content: dict[str, Any]) -> None:
    path = results.cell_file(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(add_digest(content)), encoding="utf-8")


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(SUITE), encoding="utf-8")
    return read_suite(path)


@pytest.fixture
def results(tmp_path: Path, suite: Suite) -> Results:
    """Return a folder in which all is measured but one seed, and one method on one dataset."""
    found = Results(tmp_path / "out")
    for cell in suite.cells():
        if (cell.dataset, cell.method) == ("patterns", "zero_shot") or (cell.setting, cell.seed) == ("trzsl", 2):
            continue
        write(found, cell, content_of(cell, 0.5 + 0.01 * cell.seed + (0.1 if cell.method == "cap" else 0.0)))
    return found


@pytest.fixture
def rows(suite: Suite, results: Results) -> list[Row]:
    return read_rows(suite, results)


def test_numbers_are_means_and_deviations_over_seeds(rows: list[Row]) -> None:
    row = next(row for row in rows if (row.dataset, row.setting, row.method) == ("dtd", "ul", "cap"))
    assert row.number("score") == pytest.approx((61.0, statistics.stdev([60, 61, 62]), 3))
    assert row.mean("minutes") == pytest.approx(2.0)
    assert row.published is not None
    assert row.difference == pytest.approx(61.0 - 55.29)
    assert len(finished_cells(rows)) == 3 * 5
    assert dataclasses.replace(row, cells=[]).number("score") is None
    assert dataclasses.replace(row, cells=row.cells[:1]).number("score") == (pytest.approx(60.0), None, 1)


def test_markdown_keeps_ours_and_theirs_apart(suite: Suite, rows: list[Row]) -> None:
    page = as_markdown(suite, rows, "captune benchmark two.yaml")
    lines = page.splitlines()
    assert "15 of 24 cells. captune 0.1.0; commit aaaaaaaaa+; torch 2; device cpu. Written by:" in lines
    assert "| method | UL | *UL paper* | diff | TRZSL | *TRZSL paper* | diff |" in lines
    assert "| cap | 61.0 ± 1.0 | *55.29 ± 0.31* | +5.7 | 60.5 ± 0.7 (2 of 3) | *69.55 ± 0.51* | -9.0 |" in lines
    assert "| method | UL | TRZSL |" in lines  # nothing is published about the other dataset
    assert "| zero_shot | – | – |" not in lines
    assert "(Table 1, CLIP ViT-B/32; tab:main_results), not ours" in page
    for dataset, sentence in (
        ("dtd", "- dtd: 3 of the 1880 test images are also in the pool. Drawn by a rule."),
        ("patterns", "- patterns: none of the 1880 test images is also in the pool."),
    ):
        assert lines.count(sentence) == 1
        table = lines[lines.index(f"**{dataset}**") : lines.index(sentence)]
        assert [line[:1] for line in table if line and line[0] != "|"] == ["*"]  # it stands right under the table


def test_a_suite_chooses_what_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    content = {**SUITE, "published": "", "settings": ["ul"], "shows": ["score", "pool_accuracy", "kept_accuracy"]}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    suite, results = read_suite(path), Results(tmp_path / "out")
    for cell in suite.cells():
        write(results, cell, content_of(cell, 0.5))
    lines = as_markdown(suite, read_rows(suite, results), "c").splitlines()
    for heading, row in (
        ("**UL**", "| cap | 50.0 ± 0.0 | 50.0 ± 0.0 |"),
        ("**UL, accuracy on the images adapted to**", "| cap | 52.0 ± 0.0 | 52.0 ± 0.0 |"),
        ("**UL, accuracy of the classifier that is kept**", "| cap | 40.0 ± 0.0 | 40.0 ± 0.0 |"),
    ):
        table = lines[lines.index(heading) :]
        assert row in table[: table.index("", 2)]


def test_csv_has_every_number(suite: Suite, rows: list[Row], tmp_path: Path) -> None:
    lines = list(csv.DictReader(io.StringIO(as_csv(suite, rows))))
    assert len(lines) == 8
    row = next(row for row in lines if (row["dataset"], row["setting"], row["method"]) == ("dtd", "trzsl", "cap"))
    assert (row["seeds"], row["seeds_planned"], row["harmonic_mean"], row["published"]) == (
        "2",
        "3",
        "60.5000",
        "69.5500",
    )
    empty = next(row for row in lines if (row["dataset"], row["method"]) == ("patterns", "zero_shot"))
    assert (empty["seeds"], empty["score"], empty["published"]) == ("0", "", "")
    assert [path.name for path in write_tables(suite, rows, tmp_path / "t", "c")] == ["two.md", "two.csv"]


def test_a_cell_whose_default_changed_or_whose_file_is_damaged_does_not_count(suite: Suite, results: Results) -> None:
    cell = next(cell for cell in suite.cells() if cell.method == "cap")
    content = content_of(cell, 0.6)
    assert results.state(cell, {"data": "d"}) == "finished"
    assert results.state(cell, {"data": "other"}) == "outdated"
    newer = {**content["cell"]["settings"]}
    newer.pop("k")  # a setting that came later stands at its default
    write(results, cell, {**content, "cell": {**content["cell"], "settings": newer}})
    assert results.read(cell) is not None
    write(results, cell, {**content, "cell": {**content["cell"], "settings": {**newer, "tau": 0.1}}})
    assert results.read(cell) is None
    assert results.state(cell, {"data": "d"}) == "outdated"
    results.cell_file(cell).write_text("{", encoding="utf-8")
    assert results.state(cell, {"data": "d"}) == "outdated"
    assert results.damaged(suite.cells()) == [results.cell_file(cell)]
    results.cell_file(cell).unlink()
    assert results.damaged(suite.cells()) == []
    assert results.state(cell, {"data": "d"}) == "to do"


def test_a_file_that_was_changed_is_damaged(suite: Suite, results: Results) -> None:
    cell = next(cell for cell in suite.cells() if cell.method == "cap")
    before = len(finished_cells(read_rows(suite, results)))
    content = json.loads(results.cell_file(cell).read_text())
    for changes in ({"score": 0.9}, {"version": 2}, {"digest": None}):
        results.cell_file(cell).write_text(json.dumps({**content, **changes}), encoding="utf-8")
        assert results.damaged(suite.cells()) == [results.cell_file(cell)]
        assert results.state(cell, {"data": "d"}) == "outdated"
        assert len(finished_cells(read_rows(suite, results))) == before - 1


def test_what_is_not_measured_is_said(suite: Suite, results: Results) -> None:
    for cell in suite.cells():
        if cell.dataset == "dtd":
            results.cell_file(cell).unlink(missing_ok=True)
    page = as_markdown(suite, read_rows(suite, results), "c")
    assert "\n- patterns: none of the" in page
    assert "\n- dtd: not measured yet.\n" in page
