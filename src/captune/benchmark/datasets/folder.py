"""Your own images: a folder with train and test by class, or with one sub-folder a class and a seeded split."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from captune.benchmark.datasets._folders import class_folders, read_folders
from captune.benchmark.datasets._lists import draw_by_class
from captune.benchmark.datasets.base import Dataset, DatasetFacts, LoadedDataset
from captune.core.errors import InputError

TEST_SHARE = 0.4
PARTS = ("train", "test")


class Folder(Dataset):
    """The root itself is the dataset; class names are those of the folders, with `_` as space."""

    facts = DatasetFacts("Folder of images", "your own", "your own", n_classes=None, n_pool=None, n_test=None)

    def is_found(self, root: Path) -> bool:
        """Return whether the root has sub-folders for at least two classes."""
        return len(class_folders(root / "train" if self._has_parts(root) else root)) >= 2

    def load(self, root: Path) -> LoadedDataset:
        """Return images by folder; without train and test, a seeded 40 % of every class is the test set."""
        if not self.is_found(root):
            raise InputError(
                f"No dataset in {str(root)!r}. Looked for: train/<class>/ and test/<class>/, or <class>/ of at least "
                "two classes."
            )
        if self._has_parts(root):
            classes = class_folders(root / "train")
            strange = sorted(set(class_folders(root / "test")) - set(classes))
            if strange:
                raise InputError(f"{str(root / 'test')!r} has the class {strange[0]!r}, which train does not have.")
            test = read_folders(root / "test", classes, may_lack_some=True)
            return LoadedDataset(_names(classes), *read_folders(root / "train", classes), *test)
        classes = class_folders(root)
        images, labels = read_folders(root, classes)
        measured = draw_by_class(labels, max(1, round(len(images) * TEST_SHARE)))
        pool = np.setdiff1d(np.arange(len(images)), measured)
        remark = f"The test images are a seeded {TEST_SHARE:.0%} of every class."
        return LoadedDataset(
            _names(classes), images.subset(pool), labels[pool], images.subset(measured), labels[measured], (remark,)
        )

    def _has_parts(self, root: Path) -> bool:
        return all(class_folders(root / part) for part in PARTS)


def _names(classes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.replace("_", " ") for name in classes)
