"""What the fault harness shares: photos, a tiny model and a process to fork from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from toys import write_classes

from faults.failing import Disk, watch
from faults.zygote import Zygote

CLASSES = ("cat", "dog", "bird")


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of sixteen images of each of three classes."""
    return write_classes(tmp_path_factory.mktemp("photos"), CLASSES, 16)


@pytest.fixture(scope="session")
def backbone(clip_folder: Path) -> str:
    return f"hf:{clip_folder}"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """Return a disk whose changes are seen; an audit hook stays for as long as Python runs."""
    folder = tmp_path_factory.mktemp("disk")
    with pytest.MonkeyPatch.context() as patch:
        made = Disk(folder)
        watch(made, patch)
        yield made
