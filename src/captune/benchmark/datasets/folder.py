"""Your own images: a folder with train and test folders by class, or with one folder per class and a random split."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base
from captune.core.errors import InputError

TEST_SHARE = 0.4


class Folder(base.Dataset):
    """The root itself is the dataset; class names are the folder names with `_` as space."""

    facts = base.FACTS["folder"]

    def is_found(self, root: Path) -> bool:
        """Return whether the root has folders for at least two classes."""
        return len(self._classes(root)) >= 2

    def load(self, root: Path) -> base.LoadedDataset:
        """Return images by folder; without train and test folders, 40 % of every class become the test set."""
        classes, test = self._classes(root), base.class_folders(root / "test")
        if len(classes) < 2:
            raise InputError(
                f"No dataset in {str(root)!r}. Looked for train/<class>/ and test/<class>/, or <class>/, with at least "
                "two classes."
            )
        if classes == base.class_folders(root):
            remark = f"The test images are a random {TEST_SHARE:.0%} of every class, drawn with a fixed seed."
            return base.draw_split(root, classes, TEST_SHARE, remark)
        if unknown := sorted(set(test) - set(classes)):
            raise InputError(f"{str(root / 'test')!r} has the class {unknown[0]!r}, which train does not have.")
        parts = base.read_folders(root / "train", classes), base.read_folders(root / "test", classes, may_be_empty=True)
        return base.LoadedDataset(base.spaced(classes), *parts[0], *parts[1])

    def _classes(self, root: Path) -> tuple[str, ...]:
        """Return the folders of the classes: those of train if it and test have any, else those of the root."""
        train, test = (base.class_folders(root / part) for part in ("train", "test"))
        return train if train and test else base.class_folders(root)
