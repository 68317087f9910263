"""A run of the frozen tuner on a tiny CLIP, shared by the tests of all formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from export_runs import make_run

from captune.backbones.hf import HuggingFace
from captune.results.run import Run


@pytest.fixture(scope="session")
def clip(clip_folder: Path) -> HuggingFace:
    return HuggingFace.load(str(clip_folder))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="session")
def run(base: Path, clip: HuggingFace) -> Run:
    return make_run(base / "run", clip)


@pytest.fixture(scope="session")
def run_folder(base: Path, run: Run) -> Path:
    return base / "run"
