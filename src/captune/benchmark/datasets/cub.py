"""CUB: 200 bird species, official split (Wah et al., 2011)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base
from captune.core.errors import InputError

SITE = "https://data.caltech.edu/records/65de6-vp158"
LISTS = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")
FOLDERS = ("CUB_200_2011", "cub/CUB_200_2011", "CUB/CUB_200_2011")


def _official(folder: Path) -> base.LoadedDataset:
    """Read the four lists; ids start at 1, and a 1 in the last list means train."""
    classes, images, labels, is_train = (base.read_pairs(folder / name) for name in LISTS)
    for name, pairs in zip(LISTS[2:], (labels, is_train), strict=True):
        if len(pairs) != len(images):
            raise InputError(f"{str(folder / name)!r} has {len(pairs)} lines, expected {len(images)}, one per image.")
    ids = {number: c for c, (number, _) in enumerate(classes)}
    label_of, part_of = dict(labels), dict(is_train)
    parts: dict[str | None, base.Listed] = {"1": [], "0": []}
    for number, path in images:
        part, label = part_of.get(number), label_of.get(number)
        if part not in parts or label not in ids:
            raise InputError(f"Image {number} in {str(folder / 'images.txt')!r} has no label or no split.")
        parts[part].append((path, ids[label]))
    names = [name.partition(".")[2].replace("_", " ").lower() for _, name in classes]
    return base.from_lists(names, folder / "images", parts["1"], parts["0"])


class CUB(base.Dataset):
    """The pool is the official training set; CoOp has no split of this dataset."""

    facts = base.DatasetFacts(
        title="CUB",
        source=SITE,
        license="for non-commercial research and education; images belong to their owners",
        n_classes=200,
        n_pool=5994,
        n_test=5794,
        domain="the bird {}",
        urls=(base.RemoteFile(f"{SITE}/files/CUB_200_2011.tgz", "CUB_200_2011", "97eceeb196236b17998738112f37df78"),),
    )
    layouts = (base.Layout("official", FOLDERS, ("images", *LISTS), _official),)
