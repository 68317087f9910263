"""The embedded world: generated photographs of 24 textile patterns, stored in the cache folder."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from captune.benchmark.datasets.base import FACTS, Dataset, LoadedDataset, read_folders
from captune.embeddings.cache import default_folder
from captune.world import class_names, write_world

TRAIN_IMAGES, TEST_IMAGES, SEED = 50, 25, 0
VERSION = 1
"""Increased when the same seed no longer gives the same photographs."""


class Patterns(Dataset):
    """Generates the photographs if they are not in the cache; needs no root and no network."""

    facts = FACTS["patterns"]

    def is_found(self, root: Path) -> bool:
        """Return true: missing photographs are generated."""
        return True

    def load(self, root: Path) -> LoadedDataset:
        """Return the photographs, generated once per cache folder, where they appear only when all are there."""
        folder = default_folder() / "patterns" / f"v{VERSION}-seed{SEED}-{TRAIN_IMAGES}-{TEST_IMAGES}"
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as aside:
                for part, n_images in (("train", TRAIN_IMAGES), ("test", TEST_IMAGES)):
                    write_world(Path(aside) / "world" / part, n_images, SEED, split=part)
                with suppress(OSError):  # another process created it in the meantime
                    (Path(aside) / "world").rename(folder)
        names = class_names()
        return LoadedDataset(names, *read_folders(folder / "train", names), *read_folders(folder / "test", names))
