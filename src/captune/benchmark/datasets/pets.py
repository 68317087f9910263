"""Oxford-IIIT Pet: photographs of 37 breeds of cats and dogs, in train and test folders by breed."""

from __future__ import annotations

from captune.benchmark.datasets.base import Dataset, DatasetFacts, Layout, read_train_and_test


class Pets(Dataset):
    """The pool is the train folder; a part of the published images, 60 and 40 per breed."""

    facts = DatasetFacts(
        title="Oxford-IIIT Pet, 100 images per breed",
        source="Parkhi et al., 2012",
        license="CC BY-SA 4.0",
        n_classes=37,
        n_pool=37 * 60,
        n_test=37 * 40,
    )
    layouts = (Layout("train and test folders by breed", ("pets",), ("train", "test"), read_train_and_test),)
