"""UC Merced Land Use: 21 classes of aerial photographs, in train and test folders by class."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets._readers import class_folders, read_folders
from captune.benchmark.datasets.base import Dataset, DatasetFacts, Layout, LoadedDataset


def _read(folder: Path) -> LoadedDataset:
    names = class_folders(folder / "train")
    return LoadedDataset(names, *read_folders(folder / "train", names), *read_folders(folder / "test", names))


class UCMerced(Dataset):
    """The pool is the train folder, 60 images per class."""

    facts = DatasetFacts(
        title="UC Merced Land Use",
        source="USGS National Map Urban Area Imagery (Yang and Newsam, 2010)",
        license="public domain",
        n_classes=21,
        n_pool=1260,
        n_test=840,
    )
    layouts = (Layout("folders", ("ucmerced", "data/ucmerced"), ("train", "test"), _read),)
