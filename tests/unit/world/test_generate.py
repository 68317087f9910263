"""The photographs: determined by (seed, class, index) alone, and of every class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captune.core.errors import InputError, UnknownNameError
from captune.world import class_names, render, render_world, write_world


@pytest.mark.parametrize("name", class_names())
def test_every_class_is_drawn_with_contrast(name: str) -> None:
    photos = render(name, np.arange(6), seed=3)
    assert photos.images.shape == (6, 64, 64, 3)
    assert photos.images.dtype == np.uint8
    assert (photos.images.std(axis=(1, 2)).max(axis=1) > 5).all()
    assert set(photos.labels) == {class_names().index(name)}


def test_a_photograph_does_not_depend_on_its_batch() -> None:
    together = render("leopard", np.arange(40), seed=5).images
    alone = render("leopard", [37], seed=5).images
    assert np.array_equal(together[37], alone[0])


def test_seed_class_and_index_each_change_the_photograph() -> None:
    base = render("camouflage", [0], seed=0).images
    assert not np.array_equal(base, render("camouflage", [0], seed=1).images)
    assert not np.array_equal(base, render("camouflage", [1], seed=0).images)
    assert not np.array_equal(base, render("marbled", [0], seed=0).images)


def test_a_world_is_ordered_by_class_and_its_splits_differ() -> None:
    train = render_world(2, seed=0)
    test = render_world(2, seed=0, split="test")
    assert train.labels.tolist() == np.repeat(np.arange(24), 2).tolist()
    assert train.dyes.shape == (48, 4)
    same = (train.images == test.images).all(axis=(1, 2, 3))
    assert not same.any()


def test_write_world_makes_one_folder_per_class(tmp_path: Path) -> None:
    paths = write_world(tmp_path, images_per_class=2, seed=9, split="test")
    assert len(paths) == 48
    assert sorted(folder.name for folder in tmp_path.iterdir()) == sorted(class_names())
    written = np.asarray(Image.open(paths[-1]))
    assert np.array_equal(written, render_world(2, seed=9, split="test").images[-1])
    assert [path.parent.name for path in paths[::2]] == list(class_names())


def test_wrong_requests_are_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="gingham"):
        render("ginham", [0], seed=0)
    with pytest.raises(UnknownNameError, match="train"):
        render_world(1, seed=0, split="trian")
    with pytest.raises(InputError, match="at least 1"):
        write_world(tmp_path, images_per_class=0, seed=0)
