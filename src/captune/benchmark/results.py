"""The folder of a benchmark: one file a cell, so that merging two machines is copying files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from typing_extensions import NotRequired, TypedDict

from captune.benchmark.cells import Cell
from captune.results.run import CHECKPOINTS
from captune.training.checkpoint import holds_checkpoints

FORMAT, VERSION = "captune-cell", 1
State = Literal["finished", "outdated", "interrupted", "to do"]


@dataclass(frozen=True)
class Results:
    """Where a benchmark's cells, interrupted runs, logs and tables are."""

    folder: Path

    def cell_file(self, cell: Cell) -> Path:
        """Return the file of a finished cell."""
        return self.folder / "cells" / f"{cell.name}.json"

    def run_folder(self, cell: Cell) -> Path:
        """Return the folder of a cell's run, there while it is not finished."""
        return self.folder / "runs" / cell.name

    def log_file(self, cell: Cell) -> Path:
        """Return the file with what a cell's process said."""
        return self.folder / "logs" / f"{cell.name}.log"

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """Return what was measured; None where there is nothing whole, or a default changed its value since."""
        content = read_file(self.cell_file(cell))
        if content is None:
            return None
        before, now = content["cell"]["settings"], cell.settings
        is_same = all(before[name] == now[name] for name in before if name in now and name != "preset")
        return content if is_same else None

    def state(self, cell: Cell, inputs: Mapping[str, str]) -> State:
        """Return how far a cell is; with other data, descriptions or weights than now it is outdated."""
        content = self.read(cell)
        if content is not None:
            return "finished" if content["inputs"] == dict(inputs) else "outdated"
        if holds_checkpoints(self.run_folder(cell) / CHECKPOINTS):
            return "interrupted"
        return "outdated" if self.cell_file(cell).is_file() else "to do"

    def damaged(self, cells: Iterable[Cell]) -> list[Path]:
        """Return the files of cells that are there and cannot be used; their cells count as not measured."""
        files = (self.cell_file(cell) for cell in cells)
        return [file for file in files if file.is_file() and read_file(file) is None]


def read_file(path: Path) -> dict[str, Any] | None:
    """Return what a cell's file says, None where it is not there or not whole."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _checker().validate_python(content, strict=True)
    except (OSError, ValueError, RecursionError):  # a ValidationError is a ValueError
        return None
    return content


class _CellFacts(TypedDict):
    settings: dict[str, Any]


class _Metrics(TypedDict):
    accuracy: float
    balanced_accuracy: float
    lowest_five: float
    ece: float
    seen_accuracy: float | None
    unseen_accuracy: float | None
    harmonic_mean: float | None


class _Health(TypedDict):
    verdict: str


class _Step(TypedDict):
    images: int
    precision: float | None


class _Counts(TypedDict):
    test: int


class _Seconds(TypedDict):
    adapt: float
    embedding: float
    all: float


class _Memory(TypedDict):
    process: float


class _Versions(TypedDict):
    captune: str
    torch: str


class _Environment(TypedDict):
    versions: _Versions
    commit: str | None
    device: str


class _CellFile(TypedDict):
    """What of a cell's file is read again; it holds more."""

    format: Literal["captune-cell"]
    version: Literal[1]
    cell: _CellFacts
    inputs: dict[str, str]
    counts: _Counts
    score: float
    metrics: _Metrics
    leakage: int
    remarks: NotRequired[list[str]]
    mismatched: list[str] | None
    health: _Health | None
    pseudo_labels: list[_Step]
    seconds: _Seconds
    peak_memory_mb: _Memory
    environment: _Environment


@cache
def _checker() -> TypeAdapter[_CellFile]:
    return TypeAdapter(_CellFile)
