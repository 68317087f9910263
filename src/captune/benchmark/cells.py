"""A cell is one measurement (dataset, learning setting, method, seed); a finished cell is one JSON file."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import captune
from captune.benchmark.datasets.base import LoadedDataset, open_dataset
from captune.benchmark.splits import Setting, SplitSettings
from captune.core import registry
from captune.core.errors import InputError, RunFolderError
from captune.core.files import DIGEST, check_digest, digest, is_file, is_folder, read_card
from captune.core.settings import RunSettings, build_run
from captune.plan import with_preset
from captune.results.run_folder import CHECKPOINTS
from captune.training.checkpoint import digest_of, holds_checkpoints

FORMAT, VERSION = "captune-cell", 3
PACKAGE = Path(captune.__file__).parent
EXCLUDED_SETTINGS = ("seed", "workers", "cache", "root", "target_classes")
"""Run settings that follow from the cell's other fields or from the machine."""
COMMON_SETTINGS = ("backbone", "template", "describer", "domain")
"""Settings that most cells of a suite share."""
State = Literal["finished", "outdated", "interrupted", "to do"]


@dataclass(frozen=True)
class Cell:
    """One measurement of a benchmark; the settings are complete and flat, with `{data}` and `{models}` in paths."""

    dataset: str
    setting: Setting
    seed: int
    split_seed: int
    settings: Mapping[str, Any]
    split: SplitSettings = field(default_factory=SplitSettings)

    @property
    def method(self) -> str:
        """Return the id of the method."""
        return str(self.settings["method"])

    @property
    def name(self) -> str:
        """Return the stem of the cell's file names."""
        dataset = re.sub(r"[^\w.-]+", "_", self.dataset)  # an id such as npz:folder/file.npz
        return f"{dataset}-{self.setting}-{self.method}-{self.seed}-{self.key}"

    @property
    def key(self) -> str:
        """Return a digest of all values that differ from their defaults, so that adding a setting changes no key."""
        defaults = _plain(RunSettings(), registry.load("methods", self.method).Settings())
        chosen = {name: value for name, value in self.settings.items() if value != defaults.get(name)}
        chosen.pop("preset", None)  # its values are in the settings
        return digest_of({**dataclasses.asdict(self), "settings": {**chosen, "method": self.method}})[:16]

    def __str__(self) -> str:
        """Return the cell in one line, with the settings that differ from those of its method and preset."""
        usual = resolve_settings({"method": self.method, "preset": self.settings.get("preset", "")})
        usual |= {name: self.settings.get(name) for name in COMMON_SETTINGS}
        usual |= dataclasses.asdict(SplitSettings())
        values = {**self.settings, **dataclasses.asdict(self.split)}
        own = "".join(f" {name}={value}" for name, value in values.items() if value != usual.get(name))
        return f"{self.dataset} {self.setting.upper()} {self.method}{own} seed {self.seed} ({self.key[:8]})"


def resolve_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting of a run with these values and its preset's; one error lists all wrong values."""
    method_class = registry.load("methods", str(values["method"]))
    settings = _plain(*build_run(with_preset(method_class, values), method_class.Settings))
    return {name: value for name, value in settings.items() if name not in EXCLUDED_SETTINGS}


def _plain(*settings: Any) -> dict[str, Any]:  # noqa: ANN401 (settings dataclasses)
    """Return settings as JSON would give them back."""
    merged = {name: value for part in settings for name, value in dataclasses.asdict(part).items()}
    plain: dict[str, Any] = json.loads(json.dumps(merged))
    return plain


@dataclass(frozen=True)
class Environment:
    """The folders of datasets (`{data}` in suite files) and models (`{models}`), and the settings of this machine."""

    root: Path | None = None
    models: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    _digests: dict[tuple[str, str], str] = field(default_factory=dict)

    def settings_of(self, cell: Cell) -> dict[str, Any]:
        """Return a cell's settings with all paths filled in, and those of this machine."""
        filled = {name: self._fill(value) if isinstance(value, str) else value for name, value in cell.settings.items()}
        return {**filled, **self.settings, "seed": cell.seed}

    def is_found(self, dataset: str) -> bool:
        """Return whether a dataset's files exist, without reading them."""
        return open_dataset(dataset).is_found(self.root or Path(os.devnull))  # which contains nothing

    def load(self, dataset: str) -> LoadedDataset:
        """Return the names, images and labels of a dataset."""
        if self.root is None and not self.is_found(dataset):
            raise InputError(f"The dataset {dataset!r} needs --data FOLDER, the folder that contains it.")
        return open_dataset(dataset).load(self.root or Path())

    def inputs(self, cell: Cell) -> dict[str, str]:
        """Return digests of the data, descriptions and weights that a cell uses, each computed once."""
        settings, known = self.settings_of(cell), self._digests
        if ("data", cell.dataset) not in known:
            known["data", cell.dataset] = self.load(cell.dataset).fingerprint
        used = {"data": known["data", cell.dataset]}
        for role in ("describer", "backbone"):
            path = str(settings[role]).partition(":")[2]
            if path and (is_file(path) or is_folder(path)):
                if ("path", path) not in known:
                    known["path", path] = digest_path(Path(path))
                used[role] = known["path", path]
        return used

    def _fill(self, value: str) -> str:
        for mark, folder, flag in (("{data}", self.root, "--data"), ("{models}", self.models, "--models")):
            if mark in value:
                if folder is None:
                    raise InputError(f"{value!r} needs {flag} FOLDER.")
                value = value.replace(mark, str(folder))
        return value.replace("{captune}", str(PACKAGE))


def digest_path(path: Path) -> str:
    """Return a digest of a file's content, or of the names and sizes of a folder's files."""
    try:
        if path.is_file():
            return digest(path.read_bytes())
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return digest("".join(f"{f.relative_to(path).as_posix()}\0{f.stat().st_size}\n" for f in files).encode())
    except OSError as error:
        raise InputError(f"{error.filename!r} cannot be read: {error.strerror}.") from error


@dataclass(frozen=True)
class Results:
    """The folder of a benchmark; results of two machines are merged by copying files."""

    folder: Path

    def cell_file(self, cell: Cell) -> Path:
        """Return the file of a finished cell."""
        return self.folder / "cells" / f"{cell.name}.json"

    def run_folder(self, cell: Cell) -> Path:
        """Return the folder of a cell's run, which exists until the cell is finished."""
        return self.folder / "runs" / cell.name

    def lock_file(self, cell: Cell) -> Path:
        """Return the file that exists, and is locked, while a cell is measured and its run folder removed."""
        return self.folder / "runs" / f".{cell.name}.lock"

    def log_file(self, cell: Cell) -> Path:
        """Return the file with the output of a cell's process."""
        return self.folder / "logs" / f"{cell.name}.log"

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """Return a cell's result; None if there is no valid file, or if a default has changed since."""
        content = _read_result(self.cell_file(cell))
        if content is None:
            return None
        before, now = content["cell"]["settings"], cell.settings
        is_same = all(before[name] == now[name] for name in before if name in now and name != "preset")
        return content if is_same else None

    def state(self, cell: Cell, inputs: Mapping[str, str]) -> State:
        """Return the state of a cell; it is outdated if data, descriptions or weights have changed."""
        content = self.read(cell)
        if content is not None:
            return "finished" if content["inputs"] == dict(inputs) else "outdated"
        if holds_checkpoints(self.run_folder(cell) / CHECKPOINTS):
            return "interrupted"
        return "outdated" if self.cell_file(cell).is_file() else "to do"

    def damaged(self, cells: Iterable[Cell]) -> list[Path]:
        """Return the files of cells that exist but are not valid; their cells count as not measured."""
        files = (self.cell_file(cell) for cell in cells)
        return [file for file in files if file.is_file() and _read_result(file) is None]


def _read_result(path: Path) -> dict[str, Any] | None:
    """Return the content of a cell's file, None if it is missing or damaged."""
    try:
        content = read_card(path, FORMAT, VERSION, "missing")
        check_digest(content, str(path))
    except RunFolderError:
        return None
    return content if content.get(DIGEST) else None
