"""UC Merced Land Use: 21 classes of aerial photographs, in train and test folders by class."""

from __future__ import annotations

from captune.benchmark.datasets.base import Dataset, DatasetFacts, Layout, read_train_and_test


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
    layouts = (Layout("folders", ("ucmerced", "data/ucmerced"), ("train", "test"), read_train_and_test),)
