"""Large arrays lie in nameless files and behave like any other array."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from captune.core import arrays
from captune.core.arrays import empty_rows, fill_rows, row_parts, take_rows
from captune.core.errors import CaptuneError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAPTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(arrays, "LARGE_BYTES", 1000)
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 400)
    return tmp_path / "cache"


def is_mapped(array: object) -> bool:
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None


def test_only_large_arrays_are_mapped_and_nothing_stays_behind(cache: Path) -> None:
    small, large = empty_rows(10, 5), empty_rows(100, 5)
    assert (is_mapped(small), is_mapped(large)) == (False, True)
    large[:] = np.arange(500).reshape(100, 5)
    assert large.sum() == np.arange(500).sum()
    assert large.dtype == np.float32
    assert list((cache / "scratch").iterdir()) == []  # the file has no name: a kill leaves nothing


@pytest.mark.usefixtures("cache")
def test_parts_cover_every_row_once() -> None:
    for n_rows in (0, 1, 50, 51, 99, 1000):
        rows = [row for part in row_parts(n_rows, 5) for row in range(part.start, part.stop)]
        assert rows == list(range(n_rows))
    assert len(list(row_parts(20, 5))) == 1
    assert len(list(row_parts(100, 5))) == 5


@pytest.mark.usefixtures("cache")
def test_filling_and_taking_rows() -> None:
    whole = np.arange(1500, dtype=np.float32).reshape(300, 5)
    assert np.array_equal(fill_rows(300, 5, lambda rows: whole[rows] * 2), whole * 2)
    assert take_rows(whole, np.arange(300)) is whole
    chosen = np.arange(299, 40, -1)
    assert np.array_equal(take_rows(whole, chosen), whole[chosen])
    assert is_mapped(take_rows(whole, chosen))


@pytest.mark.usefixtures("cache")
@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="space cannot be reserved here")
def test_a_full_disk_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CaptuneError, match=r"CAPTUNE_CACHE.*No space left"):
        empty_rows(1000, 5)
