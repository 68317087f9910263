"""Run folders made without a model, so that a report of any kind is a matter of milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from report_runs import make_run

from captune.report.page import write_report

MakeRun = Callable[..., Path]

NASTY = ("<script>alert(1)</script>", 'a "quoted" name', "$x$ & $y$", "O'Brien's", "猫 und Größe", "plain")


@pytest.fixture
def run_folder(tmp_path: Path) -> MakeRun:
    """Return the function that writes a run folder, with images beside it."""

    def make(names: Sequence[str] = NASTY, name: str = "run", **facts: Any) -> Path:
        return make_run(tmp_path / name, tmp_path / "images", names, **facts)

    return make


@pytest.fixture(scope="session")
def labeled_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of an adapted run with labels; tests only read it."""
    base = tmp_path_factory.mktemp("report")
    folder = make_run(base / "run", base / "images", NASTY)
    return write_report([folder], labels=base / "images" / "labels.csv")
