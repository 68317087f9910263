"""What a dataset is: class names, a training pool and a test set with their labels, read from a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from captune.core.arrays import Ints
from captune.core.errors import raise_all
from captune.data.images import ImageCollection


@dataclass(frozen=True, eq=False)
class LoadedDataset:
    """Images and labels of a dataset; `benchmark/splits.py` decides what of it a method may see.

    Attributes:
        names: Class names; a class id is a position in it.
        pool: The images to learn from, in the order of the dataset.
        pool_labels: Their class ids (pool images,).
        test: The images to measure on.
        test_labels: Their class ids (test images,).
        remarks: What a reader of results must know: another split than the published one, other sizes.
    """

    names: tuple[str, ...]
    pool: ImageCollection
    pool_labels: Ints
    test: ImageCollection
    test_labels: Ints
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        for part, images, labels in (("pool", self.pool, self.pool_labels), ("test", self.test, self.test_labels)):
            if labels.shape != (len(images),):
                problems.append(f"{part}: expected {len(images)} labels, one an image, got shape {labels.shape}")
            elif len(images) == 0:
                problems.append(f"{part}: there is no image")
            elif labels.min() < 0 or labels.max() >= len(self.names):
                problems.append(f"{part}: labels must lie in 0 to {len(self.names) - 1}")
        raise_all(problems, "This dataset cannot be used")


@dataclass(frozen=True)
class RemoteFile:
    """A file that a dataset can be downloaded from.

    Attributes:
        url: Where it is.
        gives: What is there afterwards, below the root; where it is there already, nothing is downloaded. An archive is
            unpacked into the folder that this lies in.
        md5: The digest that its publisher or well-known readers give; empty where none is known, and then the digest
            of the first download is recorded beside it and held to afterwards.
    """

    url: str
    gives: str
    md5: str = ""


@dataclass(frozen=True)
class DatasetFacts:
    """What is known about a dataset before anything is read; sizes are None where they depend on the folder."""

    title: str
    source: str
    license: str
    n_classes: int | None
    n_pool: int | None
    n_test: int | None
    template: str = "a photo of a {}"
    urls: tuple[RemoteFile, ...] = ()


class Dataset(ABC):
    """A reader of one dataset below a root folder that may hold many."""

    facts: ClassVar[DatasetFacts]

    @abstractmethod
    def is_found(self, root: Path) -> bool:
        """Return whether the dataset's files are below this root; nothing is read."""

    @abstractmethod
    def load(self, root: Path) -> LoadedDataset:
        """Return names, images and labels; where files are missing, the error lists all that was looked for."""


PLUGIN_BASE = Dataset
