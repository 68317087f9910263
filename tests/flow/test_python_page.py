"""The blocks of docs/python.md run as they are written."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

import captune

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
INDENTED = re.compile(r"(?:(?:^    .*)?\n)+", re.MULTILINE)
BLOCKS = [dedent(block) for block in INDENTED.findall(PAGE) if block.strip()]
QUICK = ("captune.adapt(images, classes)", 'captune.adapt(images, classes, method="transductive", keep_better=False)')


def vectors(n: int, seed: int) -> Any:
    return np.repeat(np.eye(2, 4), n // 2, axis=0) + 0.1 * np.random.default_rng(seed).normal(size=(n, 4))


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names, labels = ["cat", "dog"], np.repeat(["cat", "dog"], 20)
    known: dict[str, Any] = {"captune": captune, "GridSearchCV": GridSearchCV, "names": names, "labels": labels}
    known |= {"images": captune.Embeddings(vectors(40, 0)), "classes": captune.ClassTexts(names, np.eye(2, 4))}
    known |= {"text_vectors": np.eye(2, 4), "image_vectors": vectors(40, 0), "zero_shot": np.full((40, 2), 0.5)}
    few = {"X": vectors(6, 0), "X_new": vectors(6, 1), "y_new": np.repeat(names, 3), "y": np.repeat(names, 20)}
    assert len(BLOCKS) == 4
    assert QUICK[0] in BLOCKS[0]
    for block in BLOCKS:
        exec(block.replace(*QUICK), known | few | ({"X": vectors(40, 0)} if "GridSearchCV" in block else {}), known)
    assert known["run"].evaluate(labels).accuracy > 0.9
    assert (tmp_path / "run" / "report.html").is_file()
    assert known["health"].n_images == 40


def test_every_public_name_is_on_the_page() -> None:
    assert [name for name in dir(captune) if f"`{name}" not in PAGE and name != "__version__"] == []
