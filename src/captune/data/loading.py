"""Batches of decoded images from worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captune.core.arrays import KEY_BYTES, Bools, Ints, Keys
from captune.core.errors import CaptuneError
from captune.data.decoding import RANGE, UnreadableImageError
from captune.data.images import ImageCollection

View = Callable[[Image.Image, int, Keys], NDArray[np.uint8]]
"""Turns an RGB image, its position and the digest of its content into the model's input `(height, width, 3)`."""


@dataclass(frozen=True)
class LoadedBatch:
    """Some images of a collection: positions and content digests of the readable ones, and views of the new ones."""

    positions: Ints
    keys: Keys
    is_decoded: Bools  # the others are known already
    pixels: NDArray[np.uint8]  # (decoded, height, width, 3)
    problems: dict[int, str]  # why others were skipped, by position
    ranges: dict[int, str] = field(default_factory=dict)  # guessed for images without 8 bits, by position


@dataclass(frozen=True)
class _BatchDataset:
    """A map-style dataset whose items are whole batches."""

    images: ImageCollection
    batches: Sequence[Ints]
    view: View
    known: Container[Keys] = ()

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> LoadedBatch:
        positions, keys, decoded, pixels = [], [], [], []
        problems, ranges = dict[int, str](), dict[int, str]()
        for position in self.batches[number].tolist():
            try:
                image = self.images.read(position)
                key = image.key
                is_decoded = key not in self.known
                if is_decoded:
                    opened = image.decode()
                    ranges |= {position: guessed} if (guessed := opened.info.get(RANGE)) else {}
                    pixels.append(self.view(opened, position, key))
            except UnreadableImageError as error:
                problems[position] = str(error)
                continue
            positions.append(position)
            keys.append(key)
            decoded.append(is_decoded)
        return LoadedBatch(
            np.asarray(positions, dtype=np.int64),
            np.asarray(keys, dtype=np.uint8).reshape(-1, KEY_BYTES),
            np.asarray(decoded, dtype=np.bool_),
            np.stack(pixels) if pixels else np.empty((0, 0, 0, 3), dtype=np.uint8),
            problems,
            ranges,
        )


def load_batches(
    images: ImageCollection, batches: Sequence[Ints], view: View, known: Container[Keys] = (), workers: int = 2
) -> Iterator[LoadedBatch]:
    """Yield decoded batches in order, read ahead by worker processes; `known` contents are not decoded."""
    import torch
    from torch.utils.data import DataLoader

    dataset: Any = _BatchDataset(images, batches, view, known)
    n_workers = min(workers, len(batches))
    loader: Any = DataLoader(
        dataset,
        batch_size=None,
        num_workers=n_workers,
        prefetch_factor=4 if n_workers else None,
        worker_init_fn=_obey_parent,
        generator=torch.Generator(),  # a separate one, so that loading draws nothing from the run's random numbers
    )
    can_hold = hasattr(signal, "sigwaitinfo")  # not on macOS
    try:
        # Processes that start while signals are held back never get those that others send to the whole group, as
        # Ctrl-C, `timeout` and Slurm do: the parent still needs batches to end its step.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM)) if can_hold else set()
        try:
            loaded = iter(loader)
        finally:
            if can_hold:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield from loaded
    except RuntimeError as error:
        if "worker" in str(error).lower():
            advice = "This is often a lack of memory: try again with workers set to 0"
            raise CaptuneError(f"A worker process that decodes images died ({error}). {advice}.") from error
        raise


def _obey_parent(worker: int) -> None:
    """Let the parent still end this worker by SIGTERM."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        while signal.sigwaitinfo((signal.SIGTERM,)).si_pid != (parent and parent.pid):
            pass
        os._exit(0)

    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=wait, daemon=True).start()
