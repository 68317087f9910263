"""Figures from finished cells: which pairs are compared, and whether the drawn numbers are those of the cells."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from toys import write_images

from captune.benchmark.cells import Environment, Results
from captune.benchmark.figures import draw_all, write_figures
from captune.benchmark.measuring import measure
from captune.benchmark.suite import read_suite
from captune.benchmark.tables import Row, read_rows

NAMES = ["cat", "dog", "owl", "fox"]


def cell(
    accuracies: list[float | None], groups: list[tuple[list[int], float, float]], mismatched: Any
) -> dict[str, Any]:
    return {
        "classes": NAMES,
        "metrics": {"per_class_accuracy": accuracies},
        "groups": [{"classes": c, "images": 5, "ece": ece, "accuracy": right} for c, ece, right in groups],
        "mismatched": mismatched,
        "score": 0.5,
        "seconds": {"adapt": 90.0, "embedding": 30.0},
    }


def rows() -> list[Row]:
    common = {"method": "cap", "concept_alignment": False, "margin": False, "tau": 0.85}
    pair = [([0, 1], 0.3, 0.5), ([2, 3], 0.2, 0.6)]
    better = [([0, 1], 0.1, 0.7), ([2, 3], 0.1, 0.8)]
    cells = {
        ("zero-shot", "zero_shot"): ({}, [cell([0.1, 0.9, 0.5, None], pair, None)]),
        ("neither", "cap"): (
            common,
            [cell([0.2, 0.8, 0.5, None], pair, None), cell([0.4, 0.6, 0.5, None], pair[:1], None)],
        ),
        ("CACM", "cap"): ({**common, "margin": True}, [cell([0.6, 0.8, 0.7, None], better, None)]),
        ("CA", "cap"): ({**common, "concept_alignment": True}, [cell([0.9, 0.8, 0.7, None], better, ["cat", "owl"])]),
        ("other tau", "cap"): ({**common, "margin": True, "tau": 0.5}, [cell([0.6, 0.8, 0.7, None], better, None)]),
    }
    return [
        Row("", "pets", "ul", label, {**settings, "method": method}, own)
        for (label, method), (settings, own) in cells.items()
    ]


def test_pairs_that_differ_in_one_setting_are_drawn() -> None:
    drawn = {drawing.name: drawing for drawing in draw_all(rows())}
    pair = [f"pets-ul-figure-{end}" for end in ("15-neither-cacm", "6-neither-ca", "7-neither-cacm")]
    assert sorted(drawn) == sorted([*pair, "ul-figure-14"])  # one trained method only: no times to compare
    ece, accuracy = drawn[pair[2]].rows  # the second seed of "neither" has the first group only
    assert list(ece) == ["local calibration error (ECE)", "cat / dog", 0.3, 0.3, 0.1]
    assert list(accuracy) == ["accuracy", "cat / dog", 0.5, 0.5, 0.7]
    extremes = {row[1]: row[2:] for row in drawn[pair[0]].rows}
    assert extremes["cat"] == pytest.approx((0.3, 0.6))  # the mean over seeds
    assert sorted(row[1] for row in drawn[pair[0]].rows) == ["cat", "dog", "owl"]  # once each; fox has no test image
    mismatched = [tuple(row[1:]) for row in drawn[pair[1]].rows]
    assert mismatched == [("cat", pytest.approx(0.3), 0.9), ("owl", 0.5, 0.7)]
    assert [tuple(row) for row in drawn["ul-figure-14"].rows] == [("", "pets", 2.0)]


def test_curves_join_rows_that_differ_in_one_number() -> None:
    """Figures 8 and 9: by dataset, one line for each method and learning setting, over tables."""

    def row(table: str, dataset: str, setting: str, method: str, score: float, **settings: Any) -> Row:
        content = {**cell([0.5] * 4, [], None), "score": score}
        return Row(table, dataset, setting, f"{method} {settings}", {"method": method, **settings}, [content])

    given = [
        row("m", "dtd", "ul", "cap", 0.50, margin_scale=4.0, unlabeled_share=1.0),
        row("m", "dtd", "ul", "cap", 0.55, margin_scale=12.0, unlabeled_share=1.0),
        row("share", "dtd", "ul", "cap", 0.30, margin_scale=12.0, unlabeled_share=0.2),
        row("share", "dtd", "ssl", "cap", 0.40, margin_scale=12.0, unlabeled_share=0.2),
        row("share", "dtd", "ssl", "cap", 0.60, margin_scale=12.0, unlabeled_share=1.0),
        row("CPL", "dtd", "ssl", "cpl", 0.35, unlabeled_share=0.2),
        row("CPL", "dtd", "ssl", "cpl", 0.45, unlabeled_share=0.4),
        row("CPL", "pets", "ssl", "cpl", 0.45, unlabeled_share=0.4),
    ]
    drawn = {drawing.name: drawing for drawing in draw_all(given)}
    assert drawn["figure-8"].header == ("panel", "margin_scale", "cap UL")
    assert [tuple(row) for row in drawn["figure-8"].rows] == [("dtd", "4", 50.0), ("dtd", "12", 55.0)]
    assert drawn["figure-9"].header == ("panel", "unlabeled_share", "cap UL", "cap SSL", "cpl SSL")
    expected = [("dtd", "0.2", 30.0, 40.0, 35.0), ("dtd", "0.4", "", "", 45.0), ("dtd", "1", 55.0, 60.0, "")]
    assert [tuple(row) for row in drawn["figure-9"].rows] == expected


def test_times_compare_different_methods() -> None:
    """Figure 13: minutes without embedding, one group of bars for each method."""
    given = [
        Row("", dataset, "ul", method, {"method": method}, [cell([0.5] * 4, [], None)])
        for dataset in ("dtd", "pets")
        for method in ("zero_shot", "cap", "grip")
        if (dataset, method) != ("pets", "grip")
    ]
    (drawing,) = draw_all(given)
    assert drawing.header == ("panel", "method", "dtd", "pets")
    assert [tuple(row) for row in drawing.rows] == [("", "zero_shot", 1, 1), ("", "cap", 1, 1), ("", "grip", 1, "")]


def test_finished_cells_hold_what_the_figures_need(tmp_path: Path, clip_folder: Path) -> None:
    data = tmp_path / "data"
    for part, n_images in (("train", 8), ("test", 4)):
        for number, name in enumerate(NAMES):
            write_images(data / part / name, n_images, seed=100 * number + n_images)
    short = {"method": "cap", "preset": "quick", "epochs": 2, "iterations": 2, "k": 2, "strong_views": 1}
    content = {
        "datasets": ["folder"],
        "settings": ["ul"],
        "seeds": [0],
        "defaults": {"backbone": f"hf:{clip_folder}"},
        "methods": {
            "zero_shot": None,
            "without": {**short, "margin": False},
            "with": short,
            "m = 4": {**short, "margin_scale": 4.0},
        },
    }
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    suite, results = read_suite(file), Results(tmp_path / "out")
    for one in suite.cells():
        measure(one, results, Environment(data, None, {"workers": 0}))
    cells = [results.read(one) for one in suite.cells()]
    groups = [[group["classes"] for group in one["groups"]] for one in cells if one]
    assert groups[0] == groups[1] == groups[2]  # the groups of zero-shot, whatever the method
    written = write_figures(read_rows(suite, results), tmp_path / "figures")
    assert tmp_path / "figures" / "folder-ul-figure-15-without-with.png" in written
    with (tmp_path / "figures" / "folder-ul-figure-15-without-with.csv").open(encoding="utf-8") as table:
        drawn = {row["class"]: float(row["with"]) for row in csv.DictReader(table)}
    ours = next(one for one in cells if one and one["cell"]["settings"].get("margin") is True)
    curve = (tmp_path / "figures" / "figure-8.csv").read_text(encoding="utf-8").splitlines()
    assert curve[0] == "panel,margin_scale,cap UL"
    assert f"folder,12,{round(100 * ours['score'], 4)}" in curve
    assert drawn == pytest.approx(dict(zip(NAMES, ours["metrics"]["per_class_accuracy"], strict=True)), abs=1e-4)
    shares = (tmp_path / "figures" / "class-shares.csv").read_text(encoding="utf-8").splitlines()
    assert len(shares) == 1 + 4
