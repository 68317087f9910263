"""Cells that are measured by two processes, started by the suite and by torchrun: the same as by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ranks import SHORT
from toys import write_images

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ALONE = [sys.executable, "-m", "captune.cli"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "captune.cli"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, dual_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    for part, n_images in (("train", 8), ("test", 4)):
        for number, name in enumerate(("cat", "red dog", "owl")):
            write_images(folder / "data" / part / name, n_images, side=36, seed=100 * number + n_images)
    suite = {
        "datasets": ["folder"],
        "settings": ["ssl"],
        "seeds": [0],
        "defaults": {"backbone": f"dual:{dual_folder}", "preset": "full", **SHORT},
        "methods": ["zero_shot", "cap"],
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
    return folder


def measure(place: Path, name: str, start: list[str], *more: str) -> dict[str, dict[str, Any]]:
    command = ["benchmark", str(place / "suite.yaml"), "--data", str(place / "data"), "--out", str(place / name)]
    known = {**os.environ, "OMP_NUM_THREADS": "1", "CAPTUNE_CACHE": str(place / f"cache-{name}")}
    done = subprocess.run(
        [*start, *command, *more], check=False, capture_output=True, text=True, env=known, timeout=900
    )
    logs = "\n".join(path.read_text() for path in (place / name / "logs").glob("*"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert done.stdout.count("2 cells measured, 0 already finished, 0 failed.") == 1
    assert not list((place / name / "runs").iterdir()), "run folders and locks go with their cells"
    cells = [json.loads(path.read_text()) for path in (place / name / "cells").glob("*.json")]
    return {cell["cell"]["settings"]["method"]: cell for cell in cells}


def test_cells_are_the_same_by_two_processes(place: Path) -> None:
    one = measure(place, "one", ALONE)
    flags = ("--devices", "2", "--accelerator", "cpu")
    for two in (measure(place, "two", ALONE, *flags), measure(place, "torchrun", TORCHRUN)):
        assert two.keys() == one.keys() == {"zero_shot", "cap"}
        for method, cell in two.items():
            assert cell["environment"]["processes"] == 2
            assert one[method]["environment"]["processes"] == 1
            for what in ("cell", "inputs", "counts", "pseudo_labels", "mismatched"):
                assert cell[what] == one[method][what], what
            assert cell["metrics"]["per_class_accuracy"] == one[method]["metrics"]["per_class_accuracy"]
