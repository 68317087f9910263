"""The interface of a dataset: class names, a training pool and a test set with labels, read from a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from captune.core import registry
from captune.core.arrays import Ints
from captune.core.errors import InputError, raise_all
from captune.core.files import is_file, is_folder
from captune.data.images import ImageCollection
from captune.data.precomputed import ClassTexts


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
        problems = []
        for part, images, labels in (("pool", self.pool, self.pool_labels), ("test", self.test, self.test_labels)):
            if labels.shape != (len(images),):
                problems.append(f"{part}: expected {len(images)} labels, one per image, got shape {labels.shape}")
            elif len(images) == 0:
                problems.append(f"{part}: no images")
            elif labels.min() < 0 or labels.max() >= len(self.names):
                problems.append(f"{part}: labels must be in 0 to {len(self.names) - 1}")
        raise_all(problems, "This dataset cannot be used")

    @property
    def fingerprint(self) -> str:
        """Return a digest of images, labels, names and texts."""
        digest = hashlib.blake2b(f"{self.pool.fingerprint}{self.test.fingerprint}{self.names}".encode(), digest_size=16)
        digest.update(self.pool_labels.tobytes() + self.test_labels.tobytes())
        if self.texts is not None:
            digest.update(self.texts.vectors.tobytes() + f"{self.texts.logit_scale}".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class RemoteFile:
    """A public file of a dataset, and the path below the root that it is, or that it creates if it is an archive."""

    url: str
    creates: str
    md5: str

    def command(self, root: Path) -> str:
        """Return the shell command that downloads the file, checks it and unpacks it."""
        name, target = self.url.rsplit("/", 1)[-1], root / self.creates
        folder = shlex.quote(str(target.parent))
        unpack = {".zip": f" && unzip -q {name}", ".mat": ""}.get(Path(name).suffix, f" && tar -xf {name}")
        check = f"echo {self.md5}  {name} | md5sum -c"
        return f"mkdir -p {folder} && cd {folder} && curl -LC - -O {self.url} && {check}{unpack}"


@dataclass(frozen=True)
class DatasetFacts:
    """What is known about a dataset without reading it; sizes are None if they depend on the folder.

    `domain` says what the images show when a language model is asked about a class, like the setting of that name.
    """

    title: str
    source: str
    license: str
    n_classes: int | None
    n_pool: int | None
    n_test: int | None
    template: str = "a photo of a {}"
    domain: str = "{}"
    urls: tuple[RemoteFile, ...] = ()


@dataclass(frozen=True)
class Layout:
    """One way to store a dataset: candidate folders, the files it needs, and the function that reads it."""

    title: str
    folders: tuple[str, ...]
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
        return self._find(root) is not None

    def load(self, root: Path) -> LoadedDataset:
        """Return names, images and labels; the error for missing files lists every path that was tried."""
        found = self._find(root)
        if found is None:
            raise InputError(self._not_found(root))
        layout, folder = found
        return with_size_remarks(layout.read(folder), self.facts)

    def _find(self, root: Path) -> tuple[Layout, Path] | None:
        for layout in self.layouts:
            for folder in layout.folders:
                if all(_exists(root / folder / need) for need in layout.needs):
                    return layout, root / folder
        return None

    def _not_found(self, root: Path) -> str:
        lines = [f"{self.facts.title} was not found in {str(root)!r}. Looked for:"]
        for layout in self.layouts:
            for folder in layout.folders:
                wanted = [(Path(folder) / need).as_posix() for need in layout.needs]
                missing = [name for name in wanted if not _exists(root / name)]
                note = f" (only missing: {', '.join(missing)})" if len(missing) < len(wanted) else ""
                lines.append(f"{layout.title}: {', '.join(wanted)}{note}")
        text = "\n  - ".join(lines)
        commands = [f"\n  {remote.command(root)}" for remote in self.facts.urls if not _exists(root / remote.creates)]
        return text + ("\nDownload it with:" + "".join(commands) if commands else "")


PLUGIN_BASE = Dataset


def open_dataset(identifier: str) -> Dataset:
    """Return the reader of a dataset by its id: a name, or `npz:FILE`."""
    name, file = registry.split_id("datasets", identifier, "npz:folder/file.npz")
    reader: type[Dataset] = registry.load("datasets", name)
    if bool(file) != reader.takes_file:
        expected = f"{name}:folder/file.{name}" if reader.takes_file else name
        raise InputError(f"The dataset {identifier!r} cannot be used. Expected {expected!r}.")
    return reader(file) if file else reader()


def with_size_remarks(data: LoadedDataset, facts: DatasetFacts) -> LoadedDataset:
    """Return the dataset with a remark for every size that differs from the published one."""
    sizes = (
        ("classes", len(data.names), facts.n_classes),
        ("images in the pool", len(data.pool), facts.n_pool),
        ("test images", len(data.test), facts.n_test),
    )
    remarks = [
        f"{facts.title} has {found} {what} here instead of {expected}: results are not comparable with published ones."
        for what, found, expected in sizes
        if expected is not None and found != expected
    ]
    return dataclasses.replace(data, remarks=(*data.remarks, *remarks))


def _exists(path: Path) -> bool:
    return is_file(path) or is_folder(path)
