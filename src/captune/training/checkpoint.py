"""Checkpoints: safetensors files named by part, epoch, step and digest; the newest undamaged one is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from captune.core.errors import RunFolderError
from captune.core.files import LEFTOVERS, digest, write_whole
from captune.core.text import option

VERSION = 1
KEPT = 2
FILES = f"{'[0-9]' * 3}-{'[0-9]' * 5}-{'[0-9]' * 6}-{'[0-9a-f]' * 32}.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after some steps of an epoch: tensors and JSON facts."""

    epoch: int
    step: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of a run; `key` is a digest of everything that the training depends on.

    A method that trains several times, e.g. in rounds, numbers its trainings: a training resumes only from
    checkpoints of its own `part`, and a later part replaces an earlier one.
    """

    folder: Path
    key: str
    part: int = 0

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint and delete all but the newest two, so that one is left if the other is damaged."""
        facts = {"version": VERSION, "key": self.key, "epoch": checkpoint.epoch, "step": checkpoint.step}
        note = json.dumps({**facts, "facts": checkpoint.facts}, allow_nan=False)
        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in checkpoint.tensors.items()}
        content = save_tensors(tensors, {"captune": note})
        name = f"{self.part:03d}-{checkpoint.epoch:05d}-{checkpoint.step:06d}-{digest(content)}.safetensors"
        write_whole(self.folder / name, content)
        for old in sorted(self.folder.glob(FILES))[:-KEPT]:
            with suppress(OSError):  # one too many does no harm
                old.unlink()
        return self.folder / name

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint if it belongs to this part, or None; different settings are an error."""
        part, found = self.newest_of_all()
        return found if part == self.part else None

    def newest_of_all(self) -> tuple[int, Checkpoint | None]:
        """Return the newest checkpoint of any part, and its part; the first part if there is none."""
        for path in sorted(self.folder.glob(FILES), reverse=True):
            content = path.read_bytes()
            if digest(content) != path.stem.rpartition("-")[2]:
                continue  # damaged
            with safe_open(str(path), "pt") as file:
                note = json.loads(file.metadata()["captune"])
            if note["version"] > VERSION:
                raise RunFolderError(f"{str(path)!r} was written by a newer captune. Upgrade: pip install -U captune.")
            if note["key"] != self.key:
                raise RunFolderError(
                    f"The checkpoints in {str(self.folder)!r} were made with other settings, images or weights: resume "
                    f"with exactly those, or start a new run in another folder ({option('out')})."
                )
            part = int(path.name.partition("-")[0])
            return part, Checkpoint(note["epoch"], note["step"], load_tensors(content), note["facts"])
        return 1, None


def holds_checkpoints(folder: Path) -> bool:
    """Return whether a folder contains checkpoints and nothing else."""
    return folder.is_dir() and set(folder.iterdir()) == {*folder.glob(FILES), *folder.glob(LEFTOVERS)}


def drop_checkpoints(folder: Path) -> None:
    """Delete the checkpoints in a folder, and the folder if nothing else is in it."""
    for path in (*folder.glob(FILES), *folder.glob(LEFTOVERS)):
        path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def digest_of(facts: Mapping[str, Any]) -> str:
    """Return a digest of JSON facts, the key of a run's checkpoints."""
    return digest(json.dumps(facts, sort_keys=True).encode())


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, by the rest of their names."""
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
