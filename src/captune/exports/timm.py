"""Images in a folder per split (train, validation, test) and class, with a class map for timm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from captune.core.files import write_whole
from captune.exports._datasets import ImageDataset


class TimmDataset(ImageDataset):
    """With the class map, class ids are those of the run."""

    target = "timm"
    split_names = ("train", "validation", "test")
    usage = "python train.py FOLDER --class-map FOLDER/class_map.txt"

    def add_files(self, target: Path, folders: Sequence[str]) -> None:
        """Write the class map: one folder name per line, in the order of class ids."""
        write_whole(target / "class_map.txt", "".join(f"{folder}\n" for folder in folders))
