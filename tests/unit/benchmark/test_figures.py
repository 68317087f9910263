"""Figures from finished cells: which pairs are compared, and whether the drawn numbers are those of the cells."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from toys import write_images

from captune.benchmark.cells import Results
from captune.benchmark.environment import Environment
from captune.benchmark.figures import Row, _drawings, write_figures
from captune.benchmark.measuring import measure
from captune.benchmark.runner import make_job
from captune.benchmark.suite import read_suite

NAMES = ["cat", "dog", "owl", "fox"]


def cell(
    accuracies: list[float | None], groups: list[tuple[list[int], float, float]], mismatched: Any
) -> dict[str, Any]:
    return {
        "classes": NAMES,
        "metrics": {"per_class_accuracy": accuracies},
        "groups": [{"classes": c, "images": 5, "ece": ece, "accuracy": right} for c, ece, right in groups],
        "mismatched": mismatched,
    }


def rows() -> list[Row]:
    common = {"method": "cap", "concept_alignment": False, "margin": False, "tau": 0.85}
    pair = [([0, 1], 0.3, 0.5), ([2, 3], 0.2, 0.6)]
    better = [([0, 1], 0.1, 0.7), ([2, 3], 0.1, 0.8)]
    return [
        Row("zero-shot", {"method": "zero_shot"}, [cell([0.1, 0.9, 0.5, None], pair, None)]),
        Row("neither", common, [cell([0.2, 0.8, 0.5, None], pair, None), cell([0.4, 0.6, 0.5, None], pair[:1], None)]),
        Row("CACM", {**common, "margin": True}, [cell([0.6, 0.8, 0.7, None], better, None)]),
        Row("CA", {**common, "concept_alignment": True}, [cell([0.9, 0.8, 0.7, None], better, ["cat", "owl"])]),
        Row("other tau", {**common, "margin": True, "tau": 0.5}, [cell([0.6, 0.8, 0.7, None], better, None)]),
    ]


def test_pairs_that_differ_in_one_setting_are_drawn() -> None:
    drawn = {drawing.name: drawing for drawing in _drawings(rows())}
    assert sorted(drawn) == ["figure-15-neither-cacm", "figure-6-neither-ca", "figure-7-neither-cacm"]
    (group,) = drawn["figure-7-neither-cacm"].rows  # the second seed of "neither" has this group only
    assert list(group) == [1, "cat / dog", 0.3, 0.5, 0.3, 0.5, 0.1, 0.7]
    extremes = {row[1]: row[2:] for row in drawn["figure-15-neither-cacm"].rows}
    assert extremes["cat"] == pytest.approx((0.3, 0.6))  # the mean over seeds
    assert "fox" not in extremes  # no test image
    mismatched = [tuple(row[1:]) for row in drawn["figure-6-neither-ca"].rows]
    assert mismatched == [("cat", pytest.approx(0.3), 0.9), ("owl", 0.5, 0.7)]


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
        "methods": {"zero_shot": None, "without": {**short, "margin": False}, "with": short},
    }
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    suite, results = read_suite(file), Results(tmp_path / "out")
    for one in suite.cells():
        measure(make_job(one, Environment(data, None, {"workers": 0}), results))
    cells = [results.read(one) for one in suite.cells()]
    groups = [[group["classes"] for group in one["groups"]] for one in cells if one]
    assert groups[0] == groups[1] == groups[2]  # the groups of zero-shot, whatever the method
    written = write_figures(suite, results, tmp_path / "figures")
    assert tmp_path / "figures" / "folder-ul-figure-15-without-with.png" in written
    with (tmp_path / "figures" / "folder-ul-figure-15-without-with.csv").open(encoding="utf-8") as table:
        drawn = {row["class"]: float(row["with"]) for row in csv.DictReader(table)}
    ours = next(one for one in cells if one and one["cell"]["settings"].get("margin") is True)
    assert drawn == pytest.approx(dict(zip(NAMES, ours["metrics"]["per_class_accuracy"], strict=True)), abs=1e-4)
    shares = (tmp_path / "figures" / "class-shares.csv").read_text(encoding="utf-8").splitlines()
    assert len(shares) == 1 + 3
