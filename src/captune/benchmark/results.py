"""The folder of a benchmark: one file a cell, so that merging two machines is copying files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from captune.benchmark.cells import Cell
from captune.benchmark.measuring import FORMAT, VERSION
from captune.results.run import CHECKPOINTS
from captune.training.checkpoint import holds_checkpoints

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


def read_file(path: Path) -> dict[str, Any] | None:
    """Return what a cell's file says, None where it is not there or not whole."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_cell = isinstance(content, dict) and (content.get("format"), content.get("version")) == (FORMAT, VERSION)
    return content if is_cell else None
