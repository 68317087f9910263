"""CUB: 200 bird species, official split (Wah et al., 2011)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base

LISTS = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")


def _official(folder: Path) -> base.LoadedDataset:
    """Read the four lists; ids start at 1, and a 1 in the last list means train."""
    classes, images, labels, is_train = (dict(base.read_pairs(folder / name)) for name in LISTS)
    ids, parts = list(classes), {"1": base.Listed(), "0": base.Listed()}
    for number, path in images.items():
        parts[is_train[number]].append((path, ids.index(labels[number])))
    names = [name.partition(".")[2].replace("_", " ").lower() for name in classes.values()]
    return base.from_lists(names, folder / "images", parts["1"], parts["0"])


class CUB(base.Dataset):
    """The pool is the official training set; CoOp has no split of this dataset."""

    facts = base.FACTS["cub"]
    layouts = (base.Layout(("images", *LISTS), _official),)
