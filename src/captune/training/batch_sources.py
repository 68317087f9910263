"""Batch sources: cached embeddings if the image encoder is frozen, decoded images if prompts change it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from captune.core import distributed
from captune.core.arrays import Floats, Ints, Keys
from captune.core.errors import TrainingError
from captune.core.runtime import Runtime
from captune.core.text import option
from captune.data.images import ImageCollection
from captune.data.loading import load_batches
from captune.data.views import Preprocessing, strong_view, view_generator, weak_view
from captune.tuners.base import Tuner


class Request(NamedTuple):
    """The images of a step: positions among the unlabeled images (first and last field) and the labeled images."""

    pseudo_labeled: Ints
    labeled: Ints
    unlabeled: Ints

    def part(self) -> Request:
        """Return this process's part of the images, which no other process has."""
        largest = max(len(positions) for positions in self)
        if largest < distributed.size() > 1:
            raise TrainingError(
                f"A step has at most {largest} images of each kind, too few for {distributed.size()} processes: use "
                f"fewer, or larger steps, for example {option('train_batch', 32)}."
            )
        return Request(*(distributed.part(positions) for positions in self))


class Views(NamedTuple):
    """The inputs of a step: weak views of all three kinds, strong views of the unlabeled images, and their positions.

    `request` holds the positions of the images that could be read.
    """

    pseudo_labeled: Tensor
    labeled: Tensor
    weak: Tensor
    strong: Tensor
    request: Request


class BatchSource(ABC):
    """Provides the inputs of a student, and the student's embeddings of them."""

    labels: Ints
    """Labels of the readable labeled images, by position."""

    @abstractmethod
    def views(self, requests: Sequence[Request], epoch: int, first: int) -> Iterator[Views]:
        """Yield this process's part of the inputs of an epoch's steps, starting at step `first`."""

    @abstractmethod
    def embed(self, tuner: Tuner, views: Tensor) -> Tensor:
        """Return the student's embeddings of inputs, `(images, width)`."""

    @abstractmethod
    def embed_unlabeled(self, tuner: Tuner, positions: Ints) -> Tensor:
        """Return the student's embeddings of unlabeled images, without gradients, `(images, width)`."""


class EmbeddingSource(BatchSource):
    """Cached embeddings of weak and strong views, `(images, width)` and `(views, images, width)`."""

    def __init__(self, weak: Floats, strong: Sequence[Floats], labeled: Floats, labels: Ints, runtime: Runtime) -> None:
        self.labels = labels
        device = runtime.device
        self.weak, self.labeled = torch.from_numpy(weak).to(device), torch.from_numpy(labeled).to(device)
        self.strong = [torch.from_numpy(view).to(device) for view in strong]
        self.seed = runtime.seed

    def views(self, requests: Sequence[Request], epoch: int, first: int) -> Iterator[Views]:
        """Yield rows of the cached embeddings; each step draws one of the strong views, if there are any."""
        strong = self.strong or [self.weak]
        for step, wanted in enumerate(requests[first:], start=first):
            request = wanted.part()
            drawn = int(np.random.default_rng([self.seed, epoch, step]).integers(len(strong)))
            yield Views(
                self.weak[request.pseudo_labeled],
                self.labeled[request.labeled],
                self.weak[request.unlabeled],
                strong[drawn][request.unlabeled],
                request,
            )

    def embed(self, tuner: Tuner, views: Tensor) -> Tensor:
        """Pass cached embeddings through the student's adapter."""
        return tuner.refine(views)

    @torch.inference_mode()
    def embed_unlabeled(self, tuner: Tuner, positions: Ints) -> Tensor:
        """Pass cached embeddings of unlabeled images through the student's adapter."""
        return torch.cat([tuner.refine(self.weak[part]) for part in _split(positions, 8192)])


@dataclass(eq=False)
class PixelSource(BatchSource):
    """Images decoded by worker processes and encoded by the student."""

    unlabeled: ImageCollection
    labeled: ImageCollection
    labels: Ints
    preprocessing: Preprocessing
    runtime: Runtime

    def __post_init__(self) -> None:
        # The unlabeled images are listed twice; from `strong_from` on, they are loaded in the strong view.
        self.images = self.unlabeled + self.labeled + self.unlabeled
        self.labeled_from, self.strong_from = len(self.unlabeled), len(self.unlabeled) + len(self.labeled)

    def views(self, requests: Sequence[Request], epoch: int, first: int) -> Iterator[Views]:
        """Yield decoded and normalized views; an image that has become unreadable is left out of its step."""
        own = [request.part() for request in requests[first:]]
        wanted = [
            (r.pseudo_labeled, r.labeled + self.labeled_from, r.unlabeled, r.unlabeled + self.strong_from) for r in own
        ]
        view = _TrainingView(self.preprocessing, self.runtime.seed, epoch, self.strong_from)
        batches = [np.concatenate(parts) for parts in wanted]
        loaded = load_batches(self.images, batches, view, workers=self.runtime.workers)
        for request, parts, batch in zip(own, wanted, loaded, strict=True):
            unreadable = np.asarray(sorted(batch.problems), dtype=np.int64)
            # Without one of its views, an unlabeled image is left out entirely.
            lost = np.concatenate([unreadable, unreadable - self.strong_from])
            is_kept = [~np.isin(part, lost) for part in parts[:3]]
            row_of = np.cumsum(~np.isin(np.concatenate(parts), unreadable)) - 1
            rows = np.split(row_of, np.cumsum([len(part) for part in parts[:3]]))
            pixels = self.preprocessing.normalize(batch.pixels).to(self.runtime.device)
            kept_rows = [row[mask] for row, mask in zip(rows, (*is_kept, is_kept[2]), strict=True)]
            pseudo_labeled, labeled, weak, strong = (pixels[torch.from_numpy(kept)] for kept in kept_rows)
            kept = Request(*(positions[mask] for positions, mask in zip(request, is_kept, strict=True)))
            yield Views(pseudo_labeled, labeled, weak, strong, kept)

    def embed(self, tuner: Tuner, views: Tensor) -> Tensor:
        """Encode pixels with the student's prompts; encoders do not accept empty batches."""
        if len(views) == 0:
            return torch.zeros(0, tuner.backbone.embed_dim, device=views.device)
        return tuner.image_embeddings(views)

    @torch.inference_mode()
    def embed_unlabeled(self, tuner: Tuner, positions: Ints) -> Tensor:
        """Encode the weak views of unlabeled images with the student's prompts, each process a part of them."""
        rows = np.zeros((len(positions), tuner.embed_dim), dtype=np.float32)
        places = distributed.part(_split(np.arange(len(positions)), 64))
        view = _TrainingView(self.preprocessing, 0, 0, self.strong_from)
        wanted = [positions[place] for place in places]
        loaded = load_batches(self.images, wanted, view, workers=self.runtime.workers)
        for place, batch in zip(places, loaded, strict=True):
            if batch.problems:
                position, why = next(iter(batch.problems.items()))
                raise TrainingError(f"{self.images.name(position)!r} can no longer be read: {why}. Restore it.")
            pixels = self.preprocessing.normalize(batch.pixels).to(self.runtime.device)
            with self.runtime.autocast():
                rows[place] = tuner.image_embeddings(pixels).float().cpu().numpy()
        is_mine = np.isin(np.arange(len(rows)), np.concatenate([np.empty(0, dtype=np.int64), *places]))
        distributed.merge_rows(rows, is_mine)
        return torch.from_numpy(rows).to(self.runtime.device)


def draw_batches(generator: np.random.Generator, n_items: int, n_steps: int, size: int) -> list[Ints]:
    """Draw a batch of positions for every step; no item repeats before all items have been drawn."""
    if n_items == 0:
        return [np.empty(0, dtype=np.int64) for _ in range(n_steps)]
    passes = -(-n_steps * size // n_items)
    order = np.concatenate([generator.permutation(n_items) for _ in range(passes)])
    return [order[i * size : (i + 1) * size] for i in range(n_steps)]


@dataclass(frozen=True)
class _TrainingView:
    """Weak views of the images before an offset, and strong views, seeded by image and epoch, of the others."""

    preprocessing: Preprocessing
    seed: int
    epoch: int
    strong_from: int

    def __call__(self, image: Image.Image, position: int, key: Keys) -> NDArray[np.uint8]:
        if position < self.strong_from:
            return weak_view(image, self.preprocessing)
        drawn = view_generator(self.seed, self.epoch, position - self.strong_from)
        return strong_view(image, self.preprocessing, drawn)


def _split(positions: Ints, at_once: int) -> list[Ints]:
    return np.array_split(positions, max(1, -(-len(positions) // at_once)))
