"""The interface of a dataset: class names, a training pool and a test set with labels, and parts of its readers."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np

from captune.core import registry
from captune.core.arrays import Ints
from captune.core.errors import InputError
from captune.core.files import digest, is_file, is_folder, read_json
from captune.core.settings import build, read_yaml
from captune.data.images import ImageCollection, find_images
from captune.data.precomputed import ClassTexts

Listed = list[tuple[str, int]]
"""Paths relative to a folder, with their class ids."""
SEEDED_REMARK = (
    "The split was drawn at random with the published sizes and a fixed seed, because ELEVATER's index files ({files}) "
    "are missing: results differ slightly from published ones."
)


@dataclass(frozen=True, eq=False)
class LoadedDataset:
    """Images and labels of a dataset; `benchmark/splits.py` decides what a method may see.

    A class id is a position in `names`. Remarks are differences from the published dataset that affect results. With
    `texts`, the images are embeddings of the same model.
    """

    names: tuple[str, ...]
    pool: ImageCollection
    pool_labels: Ints
    test: ImageCollection
    test_labels: Ints
    remarks: tuple[str, ...] = ()
    texts: ClassTexts | None = None

    def __post_init__(self) -> None:
        for part, images, labels in (("pool", self.pool, self.pool_labels), ("test", self.test, self.test_labels)):
            is_in_range = bool(labels.size) and labels.min() >= 0 and labels.max() < len(self.names)
            if labels.shape != (len(images),) or not is_in_range:
                raise InputError(
                    f"This dataset cannot be used: its {part} has {len(images)} images and labels of shape "
                    f"{labels.shape}, expected one label from 0 to {len(self.names) - 1} for each of them."
                )

    @cached_property
    def fingerprint(self) -> str:
        """Return a digest of images, labels, names and texts."""
        content = f"{self.pool.fingerprint}{self.test.fingerprint}{self.names}".encode()
        content += self.pool_labels.tobytes() + self.test_labels.tobytes()
        if self.texts is not None:
            content += self.texts.vectors.tobytes() + f"{self.texts.logit_scale}".encode()
        return digest(content)


@dataclass(frozen=True)
class RemoteFile:
    """A public file of a dataset, and the path below the root that it is, or that it creates if it is an archive."""

    url: str
    creates: str
    md5: str

    def command(self, root: Path) -> str:
        """Return the shell command that downloads the file, checks it and unpacks it."""
        name, folder = self.url.rsplit("/", 1)[-1], shlex.quote(str((root / self.creates).parent))
        unpack = {".zip": f" && unzip -q {name}", ".mat": ""}.get(Path(name).suffix, f" && tar -xf {name}")
        check = f"echo {self.md5}  {name} | md5sum -c"
        return f"mkdir -p {folder} && cd {folder} && curl -LC - -O {self.url} && {check}{unpack}"


@dataclass(frozen=True)
class DatasetFacts:
    """What is known about a dataset without reading it, those of captune's in `facts.yaml`.

    Sizes are None if they depend on the folder. `folders` are where it may be below the root, `names` the class names
    that its files do not have. `domain` says what the images show when a language model is asked about a class, like
    the setting of that name.
    """

    title: str
    source: str
    license: str
    n_classes: int | None = None
    n_pool: int | None = None
    n_test: int | None = None
    template: str = "a photo of a {}"
    domain: str = "{}"
    folders: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[RemoteFile, ...] = ()


FACTS = {
    name: build(DatasetFacts, facts, f"facts of {name}")
    for name, facts in read_yaml(Path(__file__).with_name("facts.yaml")).items()
}


class Layout(NamedTuple):
    """One way to store a dataset: the files it needs in its folder, and the function that reads the folder."""

    needs: tuple[str, ...]
    read: Callable[[Path], LoadedDataset]


class Dataset:
    """A reader of one dataset below a root folder; the first layout that is complete is read."""

    facts: ClassVar[DatasetFacts]
    layouts: ClassVar[tuple[Layout, ...]] = ()
    takes_file: ClassVar[bool] = False
    """Whether ids of this dataset name a file, as in `npz:folder/file.npz`."""

    def __init__(self, file: str = "") -> None:
        self.file = file

    def is_found(self, root: Path) -> bool:
        """Return whether the dataset's files are below this root, without reading them."""
        return any(not missing for *_, missing in self._tried(root))

    def load(self, root: Path) -> LoadedDataset:
        """Return names, images and labels; the error for missing files lists every path that was tried."""
        lines = [f"{self.facts.title} was not found in {str(root)!r}. Looked for:"]
        for layout, folder, missing in self._tried(root):
            if not missing:
                return self._read(layout, root / folder)
            note = f" (only missing: {', '.join(missing)})" if len(missing) < len(layout.needs) else ""
            lines.append(f"{', '.join(f'{folder}/{name}' for name in layout.needs)}{note}")
        remotes = [remote for remote in self.facts.urls if not _exists(root / remote.creates)]
        commands = "".join(f"\n  {remote.command(root)}" for remote in remotes)
        raise InputError("\n  - ".join(lines) + (f"\nDownload it with:{commands}" if commands else ""))

    def _tried(self, root: Path) -> Iterator[tuple[Layout, str, list[str]]]:
        """Yield every layout and folder, with the files that are missing there."""
        for layout, folder in product(self.layouts, self.facts.folders):
            files = (f"{folder}/{name}" for name in layout.needs)
            yield layout, folder, [file for file in files if not _exists(root / file)]

    def _read(self, layout: Layout, folder: Path) -> LoadedDataset:
        """Read a complete layout, with remarks about sizes that are not the published ones."""
        facts = self.facts
        try:
            data = layout.read(folder)
        except InputError:
            raise
        except Exception as error:  # damaged lists can fail in any way
            raise InputError(
                f"{facts.title} in {str(folder)!r} cannot be read: {type(error).__name__}: {error}. One of these is "
                f"damaged: {', '.join(layout.needs)}. Unpack or download it again."
            ) from error
        sizes = (
            ("classes", len(data.names), facts.n_classes),
            ("images in the pool", len(data.pool), facts.n_pool),
            ("test images", len(data.test), facts.n_test),
        )
        remarks = (
            f"{facts.title} has {found} {what} here instead of {n}: results are not comparable with published ones."
            for what, found, n in sizes
            if n is not None and found != n
        )
        return dataclasses.replace(data, remarks=(*data.remarks, *remarks))


PLUGIN_BASE = Dataset


def open_dataset(identifier: str) -> Dataset:
    """Return the reader of a dataset by its id: a name, or `npz:FILE`."""
    name, _, file = identifier.partition(":")
    reader: type[Dataset] = registry.load("datasets", name)
    if bool(file) != reader.takes_file:
        expected = f"{name}:folder/file.{name}" if reader.takes_file else name
        raise InputError(f"The dataset {identifier!r} cannot be used. Expected {expected!r}.")
    return reader(file)


def _exists(path: Path) -> bool:
    return is_file(path) or is_folder(path)


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the sub-folders that are not hidden."""
    if not is_folder(folder):
        return ()
    return tuple(sorted(child.name for child in folder.iterdir() if child.is_dir() and child.name[0] != "."))


def spaced(names: Iterable[str]) -> tuple[str, ...]:
    """Return folder names as class names, with spaces instead of underscores."""
    return tuple(name.replace("_", " ") for name in names)


def read_folders(folder: Path, classes: Sequence[str], may_be_empty: bool = False) -> tuple[ImageCollection, Ints]:
    """Return the images in the folders of these classes, sorted by class and name, and their class ids."""
    parts = [find_images(folder / name).paths if is_folder(folder / name) else () for name in classes]
    empty = [name for name, paths in zip(classes, parts, strict=True) if not paths]
    if empty and not may_be_empty:
        raise InputError(f"No images in {str(folder / empty[0])!r}: every class needs at least one.")
    labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in parts])
    return ImageCollection(tuple(path for paths in parts for path in paths), folder), labels.astype(np.int64)


def read_train_and_test(folder: Path) -> LoadedDataset:
    """Return the dataset of a folder with train/<class>/ and test/<class>/."""
    names = class_folders(folder / "train")
    return LoadedDataset(names, *read_folders(folder / "train", names), *read_folders(folder / "test", names))


def read_lines(path: Path) -> list[str]:
    """Return the non-empty lines of a text file."""
    return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the first word of every line and the rest of the line."""
    return [(first, rest.strip()) for first, rest in (line.split(" ", 1) for line in read_lines(path))]


def read_coop(path: Path) -> tuple[Listed, Listed]:
    """Return pool (train and val) and test of a split_zhou file: lists of [path, class id, class name]."""
    content = read_json(path)
    train, val, test = ([(path, c) for path, c, _ in content[part]] for part in ("train", "val", "test"))
    return train + val, test


def by_folder(
    images: Path, pool: Sequence[str], test: Sequence[str], names: Mapping[str, str] | None = None
) -> LoadedDataset:
    """Return the dataset of two lists of `<class>/<file>`, with the folders as class names if `names` has no others."""
    folders = list(names or class_folders(images))
    listed = ([(entry, folders.index(entry.split("/")[0])) for entry in part] for part in (pool, test))
    return from_lists(tuple(names.values()) if names else spaced(folders), images, *listed)


def coop_by_folder(file: Path, images: Path, names: Mapping[str, str] | None = None) -> LoadedDataset:
    """Return the dataset of a split_zhou file, with the class ids of the folders of its images."""
    pool, test = ([path for path, _ in part] for part in read_coop(file))
    return by_folder(images, pool, test, names)


def from_lists(names: Sequence[str], folder: Path, pool: Listed, test: Listed) -> LoadedDataset:
    """Return the dataset of two lists of images; all must exist inside the folder."""
    parts: list[Any] = []
    for listed in (pool, test):
        outside = [name for name, _ in listed if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
        if outside:
            raise InputError(f"The lists name the image {outside[0]!r}, which is outside {str(folder)!r}.")
        paths = tuple(folder / name for name, _ in listed)
        missing = [path for path in paths if not is_file(path)]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(paths)} images in the lists are missing, first {str(missing[0])!r}. "
                "Unpack the whole archive again."
            )
        parts += [ImageCollection(paths, folder), np.asarray([label for _, label in listed], dtype=np.int64)]
    return LoadedDataset(tuple(names), *parts)


def draw_split(
    folder: Path, classes: Sequence[str], share: float, remark: str, names: Sequence[str] = (), draws_pool: bool = False
) -> LoadedDataset:
    """Return the dataset of class folders, with a random share of every class as test images, or as the pool.

    The share is exact, but rounded; leftovers go to the classes with the largest remainders, the first of equal ones.
    """
    images, labels = read_folders(folder, classes)
    n_drawn, sizes = max(1, round(len(labels) * share)), np.bincount(labels)
    quotas = sizes * (n_drawn / len(labels))
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    counts[np.argsort(-(quotas - counts), kind="stable")[: n_drawn - int(counts.sum())]] += 1
    drawn = [np.random.RandomState([0, c]).permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(counts)]
    is_pool = np.isin(np.arange(len(labels)), np.concatenate(drawn)) == draws_pool
    parts = [(images.subset(rows), labels[rows]) for rows in (np.flatnonzero(is_pool), np.flatnonzero(~is_pool))]
    return LoadedDataset(tuple(names) or spaced(classes), *parts[0], *parts[1], (remark,))
