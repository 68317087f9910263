"""Suite files: every mistake at once, values in their order, and cells that mean the same wherever they stand."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from captune.benchmark.runner import shard
from captune.benchmark.suite import (
    FOLDER,
    Place,
    Suite,
    find_suite,
    published_tables,
    read_suite,
    shipped_suites,
    suite_title,
)
from captune.core import registry
from captune.core.errors import InputError, UnknownNameError
from captune.core.settings import build

REPOSITORY = Path(__file__).parents[3]
DOCS = (REPOSITORY / "docs" / "benchmark.md").read_text(encoding="utf-8")
SUITES = sorted((REPOSITORY / "suites").glob("*.yaml"))
assert [path.resolve() for path in SUITES] == list(shipped_suites().values())  # suites/ is the folder of the package
FEW_LABELS = ("upl", "fpl", "grip", "cpl")
SMALL: dict[str, Any] = {
    "datasets": ["patterns"],
    "settings": ["ul", "trzsl"],
    "methods": {"zero_shot": None, "cap": {"preset": "quick"}},
    "seeds": [0, 1],
}


@cache
def read_shipped(path: Path) -> Suite:
    return read_suite(path)


def read(folder: Path, content: dict[str, Any], **only: Any) -> Suite:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return read_suite(path, only)


def settings(suite: Suite, method: str, setting: str = "ul", dataset: str = "patterns") -> dict[str, Any]:
    return dict(suite.tables[0].cells[Place(dataset, setting, method, 0)].settings)  # type: ignore[arg-type]


def test_a_suite_is_a_product(tmp_path: Path) -> None:
    suite = read(tmp_path, SMALL)
    assert len(suite.cells()) == 2 * 2 * 2
    assert len({cell.name for cell in suite.cells()}) == 8
    assert len(read(tmp_path, SMALL, method=["cap"], seed="1").cells()) == 2
    named = {**SMALL, "methods": {"cap, 20 %": {"method": "cap", "preset": "quick"}}}
    assert len(read(tmp_path, named, method=["cap, 20 %"]).cells()) == 4
    tables = {"one": {"seeds": [0]}, "two": {"settings": ["ul"]}}
    with pytest.raises(InputError, match=r"No cell .* --only seed=1 setting=trzsl"):
        read(tmp_path, {**SMALL, "tables": tables}, seed=["1"], setting="trzsl")


def test_what_only_asks_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, SMALL, method=["cap", "capp"], seed=["7"])  # the right one does not hide the wrong one
    assert "method 'capp'. Did you mean 'cap'? It has: zero_shot, cap" in str(caught.value)
    assert "seed '7'. It has: 0, 1" in str(caught.value)


def test_later_values_win_and_shared_ones_reach_who_has_them(tmp_path: Path) -> None:
    content = {
        **SMALL,
        "defaults": {"preset": "quick", "tau": 0.7, "k": 11, "describe": "all", "template": "a {}"},
        "datasets": {"patterns": {"k": 12}},
        "methods": {"zero_shot": {"describe": "none"}, "cap": None, "other": {"method": "cap", "k": 13}},
        "overrides": [{"when": {"method": ["cap", "other"], "setting": "trzsl"}, "set": {"k": 14}}],
    }
    suite = read(tmp_path, content)
    assert (settings(suite, "cap")["k"], settings(suite, "cap")["tau"]) == (12, 0.7)
    assert settings(suite, "other")["k"] == 13
    assert settings(suite, "other", "trzsl")["k"] == settings(suite, "cap", "trzsl")["k"] == 14
    assert settings(suite, "zero_shot")["describe"] == "none"
    assert settings(suite, "zero_shot")["template"] == "a {}"
    assert "k" not in settings(suite, "zero_shot")
    assert settings(suite, "cap")["tuner"] == "feature_adapter"  # the preset is spelled out


def test_every_mistake_is_listed_at_once(tmp_path: Path) -> None:
    content = {
        **SMALL,
        "methods": {"zero_shot": {"desribe": "all"}, "cap": {"preset": "quick", "tau": 2.0, "split": {"n_label": 3}}},
        "defaults": {"no_such": 1},
    }
    with pytest.raises(InputError) as caught:
        read(tmp_path, content)
    for expected in ("Did you mean 'describe'", "tau = 2.0", "no setting 'no_such'", "split: no setting 'n_label'"):
        assert expected in str(caught.value)
    wrong = {**SMALL, "datasets": ["paterns"], "methods": ["capp"], "tables": {"one": {}, "two": {"seeds": []}}}
    with pytest.raises(InputError) as caught:
        read(tmp_path, wrong)
    for expected in (
        "table one: No 'paterns' in datasets. Did you mean 'patterns'",
        "No 'capp' in methods",
        "table two: seeds",
    ):
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"setings": ["ul"]}, "Did you mean 'settings'"),
        ({"settings": ["UL"]}, "settings.0 = 'UL'"),
        ({"methods": {"cap": None}}, "preset"),
        ({"methods": {"cap": {"preset": "quick", "split": {"imbalance": 0.5}}}}, "imbalance = 0.5"),
        (
            {"overrides": [{"when": {"method": "fpl"}, "set": {}}]},
            "override for method 'fpl', which the",
        ),
        ({"overrides": [{"when": {"metod": "cap"}, "set": {}}]}, "override for 'metod'.* Did you mean 'method'"),
        ({"overrides": [{"when": {}, "set": {"method": "fpl"}}]}, "override sets 'method'"),
        ({"overrides": [{"when": {}, "set": {"desribe": "all"}}]}, "no setting 'desribe'.* Did you mean 'describe'"),
        ({"defaults": {"seed": 3}}, "'seed' cannot be set"),
        ({"defaults": {"workers": 3}}, "'workers' cannot be set"),
        ({"split_seeds": "grip"}, "split_seeds = 'grip'"),
        ({"published": "tab:impactk"}, "no published table 'tab:impactk'. Did you mean 'tab:impact_k'"),
        ({"tables": ["one"]}, "'tables' must map"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        read(tmp_path, {**SMALL, **changes})


def test_a_default_that_is_spelled_out_is_the_same_cell(tmp_path: Path) -> None:
    tables = {
        "k": {"methods": {"k=16": {"method": "cap", "k": 16}}},
        "tau": {"methods": {"tau=0.85": {"method": "cap"}}},
    }
    suite = read(tmp_path, {**SMALL, "defaults": {"preset": "full"}, "tables": tables})
    assert len(suite.tables) == 2
    assert len(suite.cells()) == 2 * 2
    other = read(tmp_path, {**SMALL, "methods": {"cap": {"preset": "full", "k": 15}}})
    assert not {cell.key for cell in other.cells()} & {cell.key for cell in suite.cells()}


def test_a_cell_is_shown_with_what_sets_it_apart(tmp_path: Path) -> None:
    method = {"method": "cap", "preset": "quick", "tau": 0.7, "split": {"unlabeled_share": 0.5}}
    suite = read(tmp_path, {**SMALL, "methods": {"plain": {"method": "cap", "preset": "quick"}, "half": method}})
    plain, half = (suite.tables[0].cells[Place("patterns", "ul", label, 1)] for label in ("plain", "half"))
    assert str(plain) == f"patterns UL cap seed 1 ({plain.key[:8]})"
    assert str(half) == f"patterns UL cap tau=0.7 unlabeled_share=0.5 seed 1 ({half.key[:8]})"


def test_published_split_seeds_are_the_same_in_all_runs(tmp_path: Path) -> None:
    suite = read(tmp_path, {**SMALL, "seeds": [7, 8, 9], "split_seeds": "paper"})
    assert {(cell.setting, cell.split_seed) for cell in suite.cells()} == {("ul", 0), ("trzsl", 500)}
    own = read(tmp_path, SMALL)
    assert all(cell.split_seed == cell.seed for cell in own.cells())


def test_shards_part_the_cells(tmp_path: Path) -> None:
    cells = read(tmp_path, SMALL).cells()
    parts = [shard(cells, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(cell.name for part in parts for cell in part) == sorted(cell.name for cell in cells)
    assert shard(cells, "9/9") == []  # fewer cells than machines
    for wrong in ("0/3", "4/3", "1", "a/b", "1/0", "²/3", "-1/3", "1/3/5", "", "1/" + "9" * 5000):
        with pytest.raises(InputError, match="--shard"):
            shard(cells, wrong)


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_suites_of_the_repository_can_be_read(path: Path) -> None:
    suite = read_shipped(path)
    assert suite.title != path.stem
    for table in suite.tables:  # what a table names in a published one must be there
        if table.file.published:
            rows = published_tables()[table.file.published]["rows"]
            ours = {table.file.named("methods", label, "published") for label in table.file.methods}
            assert ours <= {"zero_shot", *rows}  # every table may have zero-shot, for its figures
            known = {dataset for row in rows.values() for dataset in row}
            assert {table.file.named("datasets", label, "published") for label in table.file.datasets} <= known
    documented = re.search(rf"`{path.name}`.*\|([^|]*)\|$", DOCS, re.MULTILINE)
    assert documented
    assert str(len(suite.cells())) in documented[1].replace(",", " ").split()


@pytest.mark.parametrize("path", [path for path in SUITES if path.stem != "smoke"], ids=lambda path: path.stem)
def test_compared_methods_keep_their_published_settings(path: Path) -> None:
    """A value for all methods of a table must not reach one in which the same name means something else."""
    own = {"cpl": {"alpha", "beta", "g", "rounds"}}  # published for each dataset
    for cell in read_shipped(path).cells():
        if cell.method in ("fpl", "grip", "cpl", "transductive"):
            method = registry.load("methods", cell.method)
            preset = build(method.Settings, method.presets.get(cell.settings.get("preset", ""), {}), "settings")
            for name in set(vars(preset)) - own.get(cell.method, set()):
                assert cell.settings[name] == getattr(preset, name), (cell.name, name)


def test_a_name_finds_the_suite_that_comes_with_captune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"paper", "smoke", "ablations", "backbones", "longtail"} <= set(shipped_suites())
    assert find_suite("paper") == FOLDER / "paper.yaml"
    (tmp_path / "smoke").mkdir()  # whatever is called so here
    assert read_suite("smoke").name == "smoke"
    assert suite_title(find_suite("smoke")).startswith("Smoke")


def test_a_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()
    own = tmp_path / "suites" / "paper.yaml"
    own.write_text("x: 1")
    assert find_suite("suites/paper.yaml").resolve() == own
    assert find_suite(own) == own
    assert suite_title(own) == "paper"


@pytest.mark.parametrize("word", ["papr", "suites/papr.yaml", "paper.yml", "suites/paper.yaml"])
def test_a_wrong_name_is_answered_with_the_nearest(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match=r".* Did you mean 'paper'") as caught:
        find_suite(word)
    assert repr(word) in str(caught.value)
    assert "smoke" in str(caught.value)


@pytest.mark.parametrize("word", ["", "a\0b", "x" * 5000])
def test_a_name_that_the_system_refuses_is_no_suite(word: str) -> None:
    if not word:
        assert find_suite(word) == Path()  # the folder one is in, which reading refuses
        return
    with pytest.raises(UnknownNameError):
        find_suite(word)


def test_rows_may_have_fewer_seeds(tmp_path: Path) -> None:
    methods = {"zero_shot": {"seeds": [1]}, "cap": {"preset": "quick"}}
    suite = read(tmp_path, {**SMALL, "methods": methods})
    assert [cell.seed for cell in suite.cells() if cell.method == "zero_shot"] == [1, 1]
    assert len(suite.cells()) == 2 + 4
    problem = r"zero_shot: seeds = .*expected a list of some of the table's seeds \[0, 1\]"
    for wrong in ([3], 1, "0"):
        with pytest.raises(InputError, match=problem):
            read(tmp_path, {**SMALL, "methods": {"zero_shot": {"seeds": wrong}}})


def test_datasets_may_be_files(tmp_path: Path) -> None:
    rows = {"cars": {"dataset": "npz:clip/cars.npz", "backbone": "precomputed"}}
    (cell, *_) = read(tmp_path, {**SMALL, "datasets": rows}).cells()
    assert cell.name.startswith("npz_clip_cars.npz-ul-zero_shot-0-")
    assert cell.settings["template"] == "{}"
    for wrong, problem in (
        ("npz", "The dataset 'npz' cannot be used. Expected 'npz:folder/file.npz'"),
        ("patterns:x.npz", "The dataset 'patterns:x.npz' cannot be used. Expected 'patterns'"),
        ("npy:x.npy", "No 'npy' in datasets"),
    ):
        with pytest.raises(InputError, match=re.escape(problem)):
            read(tmp_path, {**SMALL, "datasets": {"cars": {"dataset": wrong}}})


def test_the_suite_of_beds_measures_what_it_promises() -> None:
    suite = read_suite("beds")
    whole, *variants = suite.tables
    assert [table.name for table in variants] == ["long tail", "few", "absent"]
    assert [len(table.file.datasets) for table in suite.tables] == [9, 9, 9, 9]
    for table in suite.tables:
        for place, cell in table.cells.items():
            is_described = place.dataset.endswith(", described")
            assert (cell.settings["describer"] != "none") == (is_described and place.method not in FEW_LABELS)
            if place.method in ("zero_shot", "transclip", "zlap"):
                assert cell.settings["describe"] == ("all" if is_described else "none")
            assert cell.split.embedded
    counts = [sum(place.method == method for place in whole.cells) for method in ("zero_shot", "grip", "cap")]
    assert counts == [9, 27, 27]
    assert {place.seed for place in variants[0].cells if place.method == "transductive"} == {0, 1, 2}
    assert {place.seed for place in variants[0].cells if place.method == "cap"} == {0}
    same = [whole.cells[Place(name, "ul", "grip", 0)] for name in ("ucmerced", "ucmerced, described")]
    assert same[0].name == same[1].name  # measured once
