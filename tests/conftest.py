"""Fixtures that several folders of tests share: tiny random models, written once per session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before any import of the hub's client: no test waits for the network


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from models import tiny_clip

    return tiny_clip(tmp_path_factory.mktemp("models") / "clip")


@pytest.fixture(scope="session")
def siglip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from models import tiny_siglip

    return tiny_siglip(tmp_path_factory.mktemp("models") / "siglip")


@pytest.fixture(scope="session")
def siglip2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from models import tiny_siglip2

    return tiny_siglip2(tmp_path_factory.mktemp("models") / "siglip2")


@pytest.fixture(scope="session")
def siglip_flexible_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from models import tiny_siglip_flexible

    return tiny_siglip_flexible(tmp_path_factory.mktemp("models") / "siglip_flexible")


@pytest.fixture(scope="session")
def dual_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from models import tiny_dual

    return tiny_dual(tmp_path_factory.mktemp("models") / "dual")
