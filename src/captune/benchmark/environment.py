"""What cells use on this machine: datasets, descriptions and weights, with their fingerprints."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import captune
from captune.benchmark.cells import Cell
from captune.benchmark.datasets.base import Dataset, LoadedDataset, open_dataset
from captune.benchmark.splits import make_split, shared_images
from captune.core.errors import InputError
from captune.core.files import is_file, is_folder

PACKAGE = Path(captune.__file__).parent


@dataclass(frozen=True)
class FoundDataset:
    """A dataset on this machine: its content, fingerprint, and the positions of images in both pool and test."""

    data: LoadedDataset
    fingerprint: str
    shared: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Environment:
    """The folders of datasets (`{data}` in suite files) and models (`{models}`), and the settings of this machine."""

    root: Path | None = None
    models: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    _found: dict[str, FoundDataset | InputError] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)

    def settings_of(self, cell: Cell) -> dict[str, Any]:
        """Return a cell's settings with all paths filled in, and those of this machine."""
        filled = {name: self._fill(value) if isinstance(value, str) else value for name, value in cell.settings.items()}
        return {**filled, **self.settings}

    def reader(self, name: str) -> Dataset:
        """Return the reader of a dataset."""
        return open_dataset(name)

    def is_found(self, name: str) -> bool:
        """Return whether a dataset's files exist, without reading them."""
        return self.reader(name).is_found(self.root or Path(os.devnull))  # which contains nothing

    def find(self, name: str) -> FoundDataset:
        """Return a dataset with its fingerprint; it is read once."""
        if name not in self._found:
            try:
                self._found[name] = self._read(name)
            except InputError as error:
                self._found[name] = error
        found = self._found[name]
        if isinstance(found, InputError):
            raise found
        return found

    def leakage(self, cell: Cell) -> int:
        """Return the number of test images whose content is also in the pool of a cell."""
        found = self.find(cell.dataset)
        if cell.split.leaky or not found.shared:
            return len(found.data.test) if cell.split.leaky else 0
        split = make_split(found.data, cell.setting, cell.split_seed, cell.split)
        pool, test = {*split.task.unlabeled.paths, *split.task.labeled.images.paths}, set(split.test.paths)
        names = ((found.data.pool.paths[i], found.data.test.paths[j]) for i, j in found.shared)
        return sum(one in pool and other in test for one, other in names)

    def inputs(self, cell: Cell) -> dict[str, str]:
        """Return fingerprints of the data, descriptions and weights that a cell uses."""
        settings = self.settings_of(cell)
        used = {"data": self.find(cell.dataset).fingerprint}
        for role in ("describer", "backbone"):
            path = str(settings[role]).partition(":")[2]
            if path and (is_file(path) or is_folder(path)):
                if path not in self._digests:
                    self._digests[path] = digest_path(Path(path))
                used[role] = self._digests[path]
        return used

    def _fill(self, value: str) -> str:
        for mark, folder, flag in (("{data}", self.root, "--data"), ("{models}", self.models, "--models")):
            if mark in value:
                if folder is None:
                    raise InputError(f"{value!r} needs {flag} FOLDER.")
                value = value.replace(mark, str(folder))
        return value.replace("{captune}", str(PACKAGE))

    def _read(self, name: str) -> FoundDataset:
        if self.root is None and not self.is_found(name):
            raise InputError(f"The dataset {name!r} needs --data FOLDER, the folder that contains it.")
        data = self.reader(name).load(self.root or Path())
        return FoundDataset(data, data.fingerprint, shared_images(data.pool, data.test))


def digest_path(path: Path) -> str:
    """Return a digest of a file's content, or of the names and sizes of a folder's files."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        if path.is_file():
            digest.update(path.read_bytes())
        else:
            for file in sorted(file for file in path.rglob("*") if file.is_file()):
                digest.update(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\n".encode())
    except OSError as error:
        raise InputError(f"{error.filename!r} cannot be read: {error.strerror}.") from error
    return digest.hexdigest()


def commit() -> str | None:
    """Return the commit of the checkout that captune runs from, with a plus if files have been changed."""
    git = ["git", "-C", str(PACKAGE)]
    try:
        found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "-uno", "."], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{found}+" if changed else found
