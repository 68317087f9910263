"""Checkpoints: the newest whole one is taken, a damaged or foreign one never."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from captune.core.errors import RunFolderError
from captune.training.checkpoint import Checkpoint, CheckpointFolder, digest_of, drop_checkpoints


def saved(folder: CheckpointFolder, *epochs: int) -> list[Path]:
    return [folder.save(Checkpoint(e, 0, {"weights": torch.full((3,), float(e))}, {"note": f"ü{e}"})) for e in epochs]


def test_the_newest_comes_back(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "c", "key")
    assert folder.newest() is None
    saved(folder, 1, 2, 10)
    found = folder.newest()
    assert found is not None
    assert (found.epoch, found.step, found.facts) == (10, 0, {"note": "ü10"})
    assert found.tensors["weights"].tolist() == [10.0] * 3
    assert len(list((tmp_path / "c").iterdir())) == 2  # older ones are dropped


def test_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "key")
    *_, last = saved(folder, 1, 2)
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(bytes(content))
    found = folder.newest()
    assert found is not None
    assert found.epoch == 1
    last.write_bytes(b"")
    emptied = folder.newest()
    assert emptied is not None
    assert emptied.epoch == 1


def test_other_settings_are_refused(tmp_path: Path) -> None:
    saved(CheckpointFolder(tmp_path, "one"), 1)
    with pytest.raises(RunFolderError, match="other settings, images or weights"):
        CheckpointFolder(tmp_path, "two").newest()


def test_clear_leaves_nothing(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "c", "key")
    drop_checkpoints(folder.folder)
    saved(folder, 1)
    drop_checkpoints(folder.folder)
    assert not (tmp_path / "c").exists()


def test_the_digest_sees_every_fact_and_no_order() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})


def test_a_later_part_hides_the_parts_before_it(tmp_path: Path) -> None:
    first = CheckpointFolder(tmp_path, "key", part=1)
    second = CheckpointFolder(tmp_path, "key", part=2)
    assert first.newest_of_all() == (1, None)
    saved(first, 50)
    assert (second.newest(), second.newest_of_all()[0]) == (None, 1)  # a new part starts from nothing
    *_, last = saved(second, 1, 2)
    found = second.newest()
    assert found is not None
    assert (found.epoch, first.newest_of_all()[0], first.newest()) == (2, 2, None)
    last.write_bytes(b"")
    assert second.newest() is not None
    with pytest.raises(RunFolderError, match="other settings"):
        CheckpointFolder(tmp_path, "two").newest_of_all()
