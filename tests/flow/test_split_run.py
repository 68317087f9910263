"""A split of a benchmark, adapted to: labels and target classes arrive, and the run can be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import write_images

import captune
from captune.benchmark.datasets.base import LoadedDataset
from captune.benchmark.splits import SplitSettings, make_split
from captune.core import registry
from captune.data.images import find_images
from captune.pipeline import carry_out
from captune.plan import plan_for_task


@pytest.mark.parametrize("setting", ["ul", "ssl", "trzsl"])
def test_a_split_can_be_adapted_to(setting: str, clip_folder: Path, tmp_path: Path) -> None:
    pool = find_images(write_images(tmp_path / "pool", 12, side=36))
    test = find_images(write_images(tmp_path / "test", 4, side=36, seed=1))
    labels = np.arange(12) % 4
    data = LoadedDataset(("cat", "dog", "bird", "fish"), pool, labels, test, np.arange(4))
    split = make_split(data, setting, 500, SplitSettings(n_labels=1))  # type: ignore[arg-type]
    short = {"method": "cap", "epochs": 2, "iterations": 2, "workers": 0}
    plan = plan_for_task(split.task, {"backbone": f"hf:{clip_folder}", "cache": str(tmp_path), **short})
    run = carry_out(plan, out=tmp_path / "run", quiet=True)
    assert run.images.paths == split.task.unlabeled.paths + split.task.labeled.images.paths
    assert run.predictions.probabilities.shape == (12, 4)
    assert captune.load(tmp_path / "run").names == data.names


def test_the_embedded_world_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPTUNE_CACHE", str(tmp_path))
    reader = registry.load("datasets", "patterns")
    monkeypatch.setattr(f"{reader.__module__}.TRAIN_IMAGES", 2)
    monkeypatch.setattr(f"{reader.__module__}.TEST_IMAGES", 1)
    first = reader().load(Path())
    written = {path: path.stat().st_mtime_ns for path in first.pool.paths}
    second = reader().load(Path())
    assert (len(first.pool), len(first.test), len(first.names)) == (48, 24, 24)
    assert written == {path: path.stat().st_mtime_ns for path in second.pool.paths}
    assert not [path for path in (tmp_path / "patterns").iterdir() if path.name.startswith(".")]


def test_the_block_of_the_document_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAPTUNE_CACHE", str(tmp_path))
    monkeypatch.setattr("captune.benchmark.datasets.patterns.TRAIN_IMAGES", 3)
    monkeypatch.setattr("captune.benchmark.datasets.patterns.TEST_IMAGES", 1)
    document = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(document.split("```python\n")[1].split("```")[0], names)
    assert names["run"].predictions.probabilities.shape == (72, 24)
    assert len(names["split"].task.labeled) == 48
