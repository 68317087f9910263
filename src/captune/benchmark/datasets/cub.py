"""CUB: 200 bird species, official split (Wah et al., 2011)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets._readers import Listed, from_lists, read_pairs
from captune.benchmark.datasets.base import Dataset, DatasetFacts, Layout, LoadedDataset, RemoteFile
from captune.core.errors import InputError

SITE = "https://data.caltech.edu/records/65de6-vp158"
LISTS = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")
FOLDERS = ("CUB_200_2011", "cub/CUB_200_2011", "CUB/CUB_200_2011")


def _official(folder: Path) -> LoadedDataset:
    """Read the four lists; ids start at 1, and a 1 in the last list means train."""
    classes, images = (read_pairs(folder / name) for name in LISTS[:2])
    labels, is_train = (dict(read_pairs(folder / name, len(images))) for name in LISTS[2:])
    ids = {number: c for c, (number, _) in enumerate(classes)}
    names = tuple(name.partition(".")[2].replace("_", " ").lower() for _, name in classes)
    parts: dict[str, Listed] = {"1": ([], []), "0": ([], [])}
    for number, path in images:
        part, label = is_train.get(number), labels.get(number)
        if part not in parts or label not in ids:
            raise InputError(f"Image {number} in {str(folder / 'images.txt')!r} has no label or no split.")
        parts[part][0].append(path)
        parts[part][1].append(ids[label])
    return from_lists(names, folder / "images", parts["1"], parts["0"], folder / "images.txt")


class CUB(Dataset):
    """The pool is the official training set; CoOp has no split of this dataset."""

    facts = DatasetFacts(
        title="CUB",
        source=SITE,
        license="for non-commercial research and education; images belong to their owners",
        n_classes=200,
        n_pool=5994,
        n_test=5794,
        domain="the bird {}",
        urls=(RemoteFile(f"{SITE}/files/CUB_200_2011.tgz", "CUB_200_2011", "97eceeb196236b17998738112f37df78"),),
    )
    layouts = (Layout("official", FOLDERS, ("images", *LISTS), _official),)
