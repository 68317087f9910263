"""A wheel that is really built holds everything that an installed captune needs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DATA = {".yaml", ".json", ".safetensors", ".html", ".j2", ".css", ".js", ".txt", ".typed"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Return a folder with what pip would install."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder / "site")
    return folder / "site"


def captune(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed package in a folder that knows nothing of the clone."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "CAPTUNE_CACHE": str(installed.parent / "cache")}
    code = "import sys, captune.cli as c; assert sys.argv[1] in c.__file__; sys.exit(c.main(sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(installed), *words]
    return subprocess.run(command, cwd=installed.parent, env=environment, text=True, capture_output=True, check=False)


def test_every_file_that_is_no_code_is_in_the_wheel(installed: Path) -> None:
    source = REPOSITORY / "src"
    wanted = {path.relative_to(source) for path in source.rglob("*") if path.suffix in DATA | {".py"}}
    found = {path.relative_to(installed) for path in installed.rglob("*") if path.is_file()}
    assert wanted <= found
    assert {Path("captune/benchmark/suites/paper.yaml"), Path("captune/benchmark/published.yaml")} <= found


@pytest.mark.slow  # torch is imported
def test_suites_are_found_by_name(installed: Path) -> None:
    listed = captune(installed, "benchmark", "smoke", "--dry-run")
    assert "24 cells, 0 finished" in listed.stdout, listed.stderr
    shown = captune(installed, "list", "suites")
    assert "Table 1: CLIP ViT-B/32" in shown.stdout
    wrong = captune(installed, "benchmark", "smok")
    assert wrong.returncode == 2
    assert "'smoke'" in wrong.stderr
