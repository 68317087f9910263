"""Batches from worker processes: order, skipped files, skipped contents, and the same views whoever decodes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captune.core.arrays import Keys, content_key
from captune.core.errors import CaptuneError
from captune.data.images import ImageCollection, find_images
from captune.data.loading import LoadedBatch, _BatchDataset, load_batches
from captune.data.views import Preprocessing, WeakView, strong_view, view_generator

SMALL = Preprocessing(8, 8, "bilinear", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
BATCHES = [np.array([0, 1, 2]), np.array([3, 4]), np.array([5, 6])]


@dataclass(frozen=True)
class StrongView:
    """A strong view as a training would ask for it."""

    epoch: int = 0

    def __call__(self, image: Image.Image, position: int, key: Keys) -> np.ndarray:
        return strong_view(image, SMALL, view_generator(1, self.epoch, position))


@dataclass(frozen=True)
class Known:
    """Contents that need not be decoded."""

    keys: tuple[bytes, ...]

    def __contains__(self, key: np.ndarray) -> bool:
        return key.tobytes() in self.keys


class DyingView:
    """A view that takes its worker process with it, as a lack of memory does."""

    def __call__(self, image: Image.Image, position: int, key: Keys) -> np.ndarray:
        import os

        os._exit(9)


@pytest.fixture
def photos(tmp_path: Path) -> ImageCollection:
    for i in range(7):
        noise = np.random.default_rng(i).integers(0, 256, (12, 20, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{i}.png")
    (tmp_path / "1.png").write_bytes((tmp_path / "0.png").read_bytes()[:80])
    (tmp_path / "5.png").write_bytes(b"")
    (tmp_path / "6.png").write_bytes(b"text")
    return find_images(tmp_path)


def collect(photos: ImageCollection, view: object, workers: int, known: object = ()) -> list[LoadedBatch]:
    return list(load_batches(photos, BATCHES, view, known, workers))  # type: ignore[arg-type]


def joined(batches: Sequence[LoadedBatch]) -> np.ndarray:
    return np.concatenate([batch.pixels for batch in batches if len(batch.pixels)])


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_skipped_and_the_others_keep_their_order(photos: ImageCollection, workers: int) -> None:
    batches = collect(photos, WeakView(SMALL), workers)
    assert [batch.positions.tolist() for batch in batches] == [[0, 2], [3, 4], []]
    assert sorted(position for batch in batches for position in batch.problems) == [1, 5, 6]
    assert joined(batches).shape == (4, 8, 8, 3)
    assert batches[0].keys[1].tobytes() == content_key(photos.paths[2].read_bytes()).tobytes()


def test_views_are_the_same_whichever_worker_makes_them(photos: ImageCollection) -> None:
    alone, together = collect(photos, StrongView(), 0), collect(photos, StrongView(), 2)
    assert np.array_equal(joined(alone), joined(together))
    assert not np.array_equal(joined(alone), joined(collect(photos, StrongView(epoch=1), 0)))


def test_known_contents_are_not_decoded(photos: ImageCollection) -> None:
    known = Known((content_key(photos.paths[2].read_bytes()).tobytes(),))
    first = collect(photos, WeakView(SMALL), 0, known)[0]
    assert first.positions.tolist() == [0, 2]
    assert first.is_decoded.tolist() == [True, False]
    assert len(first.pixels) == 1


def test_loading_draws_nothing_from_the_global_random_numbers(photos: ImageCollection) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    collect(photos, WeakView(SMALL), 0)
    assert torch.equal(before, torch.get_rng_state())


def test_batches_can_travel_to_freshly_started_workers(photos: ImageCollection) -> None:
    dataset = _BatchDataset(photos, BATCHES, WeakView(SMALL))
    assert pickle.loads(pickle.dumps(dataset))[0].positions.tolist() == [0, 2]
    assert len(dataset) == 3


def test_a_worker_that_dies_is_one_clear_error(photos: ImageCollection) -> None:
    with pytest.raises(CaptuneError, match="workers"):
        collect(photos, DyingView(), 1)
