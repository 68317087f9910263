"""What holds for every test: its own embedding cache, no network, no deadline on a busy machine; tables of faults."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from faults import records

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: threads that wait for each other cost more than they give
settings.register_profile("captune", deadline=None, max_examples=50)
settings.load_profile("captune")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # for fixtures of a whole session, too
        patch.setenv("CAPTUNE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "captune-cache"))
        yield


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a tiny random model of a kind in `models.MAKERS`, written once per session."""

    @cache
    def make(kind: str) -> Path:
        from models import MAKERS

        return MAKERS[kind](tmp_path_factory.mktemp("models") / kind)

    return make


@pytest.fixture(scope="session")
def clip_folder(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("clip")


@pytest.fixture(scope="session")
def dual_folder(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("dual_dinov2")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what a process of pytest-xdist counted to the one that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["faults"] = records.as_plain()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up what the processes counted."""
    records.add(getattr(node, "workeroutput", {}).get("faults", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables of all faults that were tried."""
    if records.FAULTS or records.MUTANTS:
        terminalreporter.section("faults")
        for line in records.tables():
            terminalreporter.write_line(line)
