"""UC Merced Land Use: 21 classes of aerial photographs, in train and test folders by class."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets._folders import class_folders, read_folders
from captune.benchmark.datasets.base import Dataset, DatasetFacts, LoadedDataset
from captune.errors import InputError


class UCMerced(Dataset):
    """Reads `ucmerced/train/<class>/` and `ucmerced/test/<class>/`."""

    facts = DatasetFacts(
        title="UC Merced Land Use",
        source="USGS National Map Urban Area Imagery (Yang and Newsam, 2010)",
        licence="public domain",
        n_classes=21,
        n_pool=1260,
        n_test=840,
    )

    def is_found(self, root: Path) -> bool:
        """Return whether both folders are there."""
        return all(class_folders(root / "ucmerced" / part) for part in ("train", "test"))

    def load(self, root: Path) -> LoadedDataset:
        """Return the photographs; class names are those of the folders."""
        folder = root / "ucmerced"
        names = class_folders(folder / "train")
        if not names:
            raise InputError(f"UC Merced was not found: looked for {str(folder / 'train')!r}.")
        return LoadedDataset(names, *read_folders(folder / "train", names), *read_folders(folder / "test", names))
