"""What `auto` chooses, and that it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import ToyBackbone

from captune.core import runtime
from captune.core.arrays import unit_rows
from captune.data.precomputed import Embeddings
from captune.data.task import AdaptationTask, LabeledImages
from captune.data.vocabulary import Vocabulary
from captune.embeddings.cache import EmbeddingCache
from captune.methods.auto import Auto
from captune.methods.base import Context
from captune.methods.cap import Cap, CapSettings

NAMES = Vocabulary(("cat", "dog", "bird"))


def task_of(backbone: ToyBackbone, n_labels: int) -> AdaptationTask:
    generator = np.random.default_rng(0)
    centers = unit_rows(generator.normal(size=(3, backbone.embed_dim)).astype(np.float32))
    classes = np.arange(150) % 3
    rows = unit_rows(centers[classes] + 0.1 * generator.normal(size=(150, backbone.embed_dim)).astype(np.float32))
    labeled = LabeledImages(Embeddings(rows[:n_labels]), classes[:n_labels]) if n_labels else None
    more: dict[str, Any] = {} if labeled is None else {"labeled": labeled}
    return AdaptationTask(NAMES, Embeddings(rows[n_labels:]), **more)


def context_of(folder: Path) -> Context:
    return Context(runtime.start(workers=0), EmbeddingCache(folder))


@pytest.mark.parametrize(("n_labels", "reason"), [(0, "no labels"), (5, "too few"), (45, "held-out")])
def test_the_choice_is_recorded_and_told_in_one_line(
    n_labels: int, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    backbone, context = ToyBackbone(), context_of(tmp_path)
    Auto().adapt(task_of(backbone, n_labels), backbone, context)
    choice = next(facts for facts in context.rounds if facts["step"] == "choice")
    assert choice["n_labels"] == n_labels
    assert bool(choice["accuracy"]) == (n_labels >= 40)
    if not choice["accuracy"]:
        assert choice["method"] == "transductive"
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith(f"Method {choice['method']}")]
    assert len(told) == 1
    assert reason in told[0]


def test_cap_records_how_many_labels_it_changes(tmp_path: Path) -> None:
    backbone, context = ToyBackbone(), context_of(tmp_path)
    settings = {**Cap.presets["quick"], "epochs": 2, "iterations": 2, "k": 4}
    Cap(CapSettings(**settings)).adapt(task_of(backbone, 0), backbone, context)
    facts = next(facts for facts in context.rounds if facts["step"] == "mixture")
    assert 0 <= facts["changed"] <= 1
