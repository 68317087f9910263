"""Your own images: a folder with train and test folders by class, or with one folder per class and a random split."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base
from captune.core.errors import InputError

TEST_SHARE = 0.4


class Folder(base.Dataset):
    """The root itself is the dataset; class names are the folder names with `_` as space."""

    facts = base.DatasetFacts("Folder of images", "your own", "your own")

    def is_found(self, root: Path) -> bool:
        """Return whether the root has folders for at least two classes."""
        return len(base.class_folders(root / "train" if self._is_split(root) else root)) >= 2

    def load(self, root: Path) -> base.LoadedDataset:
        """Return images by folder; without train and test folders, 40 % of every class become the test set."""
        if not self.is_found(root):
            raise InputError(
                f"No dataset in {str(root)!r}. Looked for train/<class>/ and test/<class>/, or <class>/, with at least "
                "two classes."
            )
        if self._is_split(root):
            classes = base.class_folders(root / "train")
            unknown = sorted(set(base.class_folders(root / "test")) - set(classes))
            if unknown:
                raise InputError(f"{str(root / 'test')!r} has the class {unknown[0]!r}, which train does not have.")
            test = base.read_folders(root / "test", classes, may_be_empty=True)
            return base.LoadedDataset(base.spaced(classes), *base.read_folders(root / "train", classes), *test)
        remark = f"The test images are a random {TEST_SHARE:.0%} of every class, drawn with a fixed seed."
        return base.draw_split(root, base.class_folders(root), TEST_SHARE, remark)

    def _is_split(self, root: Path) -> bool:
        return all(base.class_folders(root / part) for part in ("train", "test"))
