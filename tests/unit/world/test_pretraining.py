"""The pretraining script: an interrupted run ends with the weights of an uninterrupted one."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from captune.world import render_world

SCRIPTS = Path(__file__).parents[3] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("pretrain_patterns")


def test_resuming_changes_nothing(script: Any, tmp_path: Path) -> None:
    photos = render_world(2, seed=0)
    tokenizer = script.build_tokenizer(script.corpus(photos, seed=0)[:500])
    plan = script.Plan(look_steps=2, caption_steps=3, batch=6)

    def begin() -> Any:
        return script.Pretraining(script.build_model(tokenizer, 0), tokenizer, plan, 0)

    straight = begin()
    for _ in range(5):
        straight.advance(photos)
    first = begin()
    for _ in range(3):
        first.advance(photos)
    first.save(tmp_path / "checkpoint.pt")
    second = begin()
    second.load(tmp_path / "checkpoint.pt")
    for _ in range(2):
        second.advance(photos)
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


def test_the_first_phase_does_not_depend_on_the_captions(script: Any) -> None:
    small = script.build_model(script.build_tokenizer(["a photo of a cloth"], n_merges=4), 0)
    large = script.build_model(script.build_tokenizer(["a photo of a cloth"] * 3, n_merges=9), 0)
    assert torch.equal(small.visual_projection.weight, large.visual_projection.weight)
    for name, value in small.vision_model.state_dict().items():
        assert torch.equal(value, large.vision_model.state_dict()[name]), name
