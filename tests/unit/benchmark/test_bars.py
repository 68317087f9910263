"""The bars of the suite of beds: each can be held and missed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "bars.py"


@pytest.fixture(scope="module")
def bars() -> Any:
    spec = importlib.util.spec_from_file_location("bars", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bars"] = module
    spec.loader.exec_module(module)
    return module


def content(accuracy: float, verdict: str = "", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Return what a cell's file says about a classifier that is as good on the pool as on the test images."""
    metrics = {"accuracy": accuracy, "ece": 0.1, "per_class_accuracy": [accuracy] * 37}
    return {
        "cell": {"split_seed": seed},
        "metrics": metrics,
        "pool": metrics,
        "kept": {"classifier": "adapted", "metrics": metrics, "pool": metrics},
        "pseudo_labels": [{"precision": 0.8}, {"precision": 0.78}],
        "health": {"verdict": verdict} if verdict else None,
        **changes,
    }


def missed(bars: Any, cells: Any, words: str) -> bool:
    (found,) = (bar for bar in bars.check(cells) if words in bar.title)
    return bool(found.misses)


def places(bars: Any, **accuracy: float) -> dict[Any, Any]:
    """Return the cells of methods on UC Merced with descriptions."""
    return {bars.Place("all", "ucmerced, described", method): [content(a)] for method, a in accuracy.items()}


def test_harm_is_measured_against_the_better_zero_shot(bars: Any) -> None:
    cells = places(bars, zero_shot=0.5, transductive=0.495, cap=0.6)
    title = "transductive, adapted: at least zero-shot minus 1"
    assert not missed(bars, cells, title)
    cells[bars.Place("all", "ucmerced", "zero_shot")] = [content(0.52)]
    assert missed(bars, cells, title)
    assert not missed(bars, cells, "cap, adapted: at least zero-shot minus 1")
    cells[bars.Place("few", "pets", "zero_shot")] = [content(0.3), content(0.5)]
    cells[bars.Place("few", "pets", "cap")] = [content(0.38)]
    assert missed(bars, cells, "cap, adapted: at least zero-shot minus 1")


@pytest.mark.parametrize(("ours", "is_missed"), [(0.60, (False, True)), (0.66, (False, False)), (0.58, (True, True))])
def test_the_peer_is_a_bar(bars: Any, ours: float, is_missed: tuple[bool, bool]) -> None:
    cells = places(bars, transclip=0.6, transductive=ours)
    assert missed(bars, cells, "adapted: pool at least TransCLIP minus 0.5") == is_missed[0]
    assert missed(bars, cells, "adapted: mean of the pool 4 points above TransCLIP") == is_missed[1]


def test_descriptions_must_help_the_unknown_and_spare_the_known(bars: Any) -> None:
    before, good, bad = ([u] * 13 + [k] * 24 for u, k in ((0.0, 0.5), (0.2, 0.495), (0.2, 0.48)))

    def pets(method: str, described: str, accuracies: list[float]) -> dict[Any, Any]:
        made = content(0.4)
        for part in (made["metrics"], made["pool"]):
            part["per_class_accuracy"] = accuracies
        return {bars.Place("all", f"pets{described}", method): [made]}

    for accuracies, expected in ((good, False), (bad, True), (before, True)):
        cells = pets("zero_shot", "", before) | pets("cap", ", described", accuracies)
        assert missed(bars, cells, "cap, adapted: pets described, 13 unknown breeds") == expected


def test_labels_calibration_and_verdicts(bars: Any) -> None:
    place = bars.Place("all", "pets", "cap")
    cells = {place._replace(method="zero_shot"): [content(0.5)], place: [content(0.6, "helpful")]}
    for title in ("D_PL falls", "cap, adapted: calibration", "right in 90 %", "never helpful", "cannot tell"):
        assert not missed(bars, cells, title)
    steps = [{"precision": 0.8}, {"precision": 0.7}]
    cells[place] = [content(0.4, "helpful", pseudo_labels=steps, pool={**content(0.4)["pool"], "ece": 0.14})]
    for title in ("D_PL falls", "cap, adapted: calibration", "right in 90 %", "never helpful"):
        assert missed(bars, cells, title)
    cells[place] = [content(0.4, "harmful"), content(0.4, "unclear")]
    assert missed(bars, cells, "cannot tell in at most 30 %")
    assert not missed(bars, cells, "right in 90 %")


def test_without_cells_it_says_what_to_do(
    bars: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bars.py", str(tmp_path)])
    assert bars.main() == 2
    assert "captune benchmark beds" in capsys.readouterr().out
