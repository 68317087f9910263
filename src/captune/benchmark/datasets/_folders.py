"""Images in one sub-folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from captune.core.arrays import Ints
from captune.core.errors import InputError
from captune.core.files import is_folder
from captune.data.images import ImageCollection, find_images


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the sub-folders; hidden ones do not count."""
    if not is_folder(folder):
        return ()
    return tuple(sorted(child.name for child in folder.iterdir() if child.is_dir() and child.name[0] != "."))


def read_folders(folder: Path, classes: tuple[str, ...], may_lack_some: bool = False) -> tuple[ImageCollection, Ints]:
    """Return the images below the folders of these classes, by class and name, and their class ids."""
    parts = [find_images(folder / name).paths if is_folder(folder / name) else () for name in classes]
    empty = [name for name, paths in zip(classes, parts, strict=True) if not paths]
    if empty and not may_lack_some:
        raise InputError(f"There are no images in {str(folder / empty[0])!r}: every class needs some.")
    labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in parts])
    return ImageCollection(tuple(path for paths in parts for path in paths), folder), labels.astype(np.int64)
