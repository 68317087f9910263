"""Images on both sides of a split are found by content, whatever their names and however many there are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from toys import write_images

from captune.benchmark.leakage import shared_images
from captune.core.errors import InputError
from captune.data.images import ImageCollection, find_images


def test_a_copy_under_another_name_is_found(tmp_path: Path) -> None:
    pool, test = write_images(tmp_path / "pool", 5), write_images(tmp_path / "test", 3, seed=1)
    assert str(shared_images(find_images(pool), find_images(test))) == "none of the 3 test images is in the pool"
    shutil.copy(pool / "003.png", test / "zebra.png")
    shutil.copy(pool / "001.png", test / "apple.png")
    shutil.copy(pool / "001.png", pool / "twin.png")  # twice in the pool counts once
    found = shared_images(find_images(pool), find_images(test))
    assert found.pairs == ((1, 3), (3, 4))
    assert str(found) == "2 of the 5 test images are in the pool"


def test_files_of_the_same_size_are_not_mistaken(tmp_path: Path) -> None:
    for part, content in (("pool", b"abcd"), ("test", b"abce")):
        (tmp_path / part).mkdir()
        (tmp_path / part / "x.jpg").write_bytes(content)
    assert len(shared_images(find_images(tmp_path / "pool"), find_images(tmp_path / "test"))) == 0


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    gone = ImageCollection((tmp_path / "gone.jpg",), tmp_path)
    with pytest.raises(InputError, match="gone"):
        shared_images(gone, gone)
