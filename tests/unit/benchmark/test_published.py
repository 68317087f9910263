"""The transcription of the published tables: what the paper says about its own numbers must come out of ours."""

from __future__ import annotations

from typing import Any

import pytest

from captune.benchmark.splits import PUBLISHED_SPLIT_SEEDS
from captune.benchmark.suite import published_number, published_tables

MAIN = "tab:main_results"
DATASETS = ("flowers102", "resisc45", "dtd", "eurosat", "cub", "fgvc_aircraft")
METHODS = ("zero_shot", "fpl", "grip", "cpl", "cap")


def mean(table: str, method: str, dataset: str, setting: str) -> float:
    found = published_number(table, method, dataset, setting)
    assert found is not None
    return found.mean


@pytest.mark.parametrize(
    ("setting", "gains"),
    [
        ("ul", {"flowers102": 3.90, "resisc45": 4.09, "eurosat": 7.75}),
        ("trzsl", {"flowers102": 2.18, "resisc45": 2.97, "dtd": 1.55, "eurosat": 2.86}),
    ],
)
def test_gains_over_cpl_are_those_of_the_text(setting: str, gains: dict[str, float]) -> None:
    """The section on the main results prints these differences."""
    for dataset, gain in gains.items():
        assert mean(MAIN, "cap", dataset, setting) - mean(MAIN, "cpl", dataset, setting) == pytest.approx(
            gain, abs=1e-9
        )


def test_the_main_table_is_complete_and_has_the_bold_ones_where_the_paper_has_them() -> None:
    best: dict[str, set[tuple[str, str]]] = {}
    for dataset in DATASETS:
        for setting in PUBLISHED_SPLIT_SEEDS:
            numbers = {method: mean(MAIN, method, dataset, setting) for method in METHODS}
            assert len(set(numbers.values())) == len(METHODS)
            best.setdefault(max(numbers, key=lambda m: numbers[m]), set()).add((dataset, setting))
    assert set(best) == {"cpl", "cap"}
    assert best["cpl"] == {(dataset, setting) for dataset in ("cub", "fgvc_aircraft") for setting in ("ssl", "trzsl")}
    # zero-shot has one number for UL and SSL, in a cell that spans both
    assert all(mean(MAIN, "zero_shot", d, "ul") == mean(MAIN, "zero_shot", d, "ssl") for d in DATASETS)


def test_sums_of_the_main_table() -> None:
    """Sums of what a script read from the source of the paper; a digit that is mistyped later shows."""
    sums = {m: round(sum(mean(MAIN, m, d, s) for d in DATASETS for s in PUBLISHED_SPLIT_SEEDS), 2) for m in METHODS}
    assert sums == {"zero_shot": 788.62, "fpl": 936.94, "grip": 1066.92, "cpl": 1163.69, "cap": 1205.9}


def test_rounded_tables_agree_with_the_main_one_where_they_repeat_it() -> None:
    repeated = "tab:independent_adapters_ablation"
    for dataset in ("dtd", "resisc45"):
        assert mean(repeated, "cpl", dataset, "ul") == round(mean(MAIN, "cpl", dataset, "ul"), 1)
        assert mean(repeated, "independent adapters", dataset, "ul") == round(mean(MAIN, "cap", dataset, "ul"), 1)
    assert mean("tab:impact_k", "k = 16", "resisc45", "ssl") == round(mean(MAIN, "cap", "resisc45", "ssl"), 1)


def test_every_number_is_a_percentage_in_a_known_place() -> None:
    sizes = {}
    for label, table in published_tables().items():
        places: list[Any] = [n for row in table["rows"].values() for dataset in row.values() for n in dataset.items()]
        sizes[label] = len(places)
        for setting, value in places:
            assert setting in PUBLISHED_SPLIT_SEEDS
            assert 10 < (value[0] if isinstance(value, list) else value) < 100
        assert {name for row in table["rows"].values() for name in row} <= set(DATASETS)
    assert sizes == {
        MAIN: 90,
        "tab:main-ablations": 12,
        "tab:independent_adapters_ablation": 9,
        "tab:impact_k": 10,
        "tab:impact_tau": 10,
        "tab:vit-14": 36,
    }


def test_a_method_that_was_not_published_has_no_number() -> None:
    assert published_number(MAIN, "upl", "dtd", "ul") is None
