from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from models import identifier

from captune.backbones.base import Backbone, load_backbone


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Keep these tiny models on one thread: on a busy machine waiting for the others is most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def backbone_of(model_folder: Callable[[str], Path]) -> Callable[[str], Backbone]:
    """Load a tiny model once per session: backbones are frozen, so tests may share them."""

    @cache
    def load(kind: str) -> Backbone:
        return load_backbone(identifier(kind, model_folder(kind)))

    return load
