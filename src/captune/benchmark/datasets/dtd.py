"""DTD: 47 describable textures, official split 1 (Cimpoi et al., 2014)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base

SITE = "https://www.robots.ox.ac.uk/~vgg/data/dtd/"
FOLDERS = ("dtd", "dtd/dtd", "DTD")
LISTS = tuple(f"labels/{part}1.txt" for part in ("train", "val", "test"))
COOP = "split_zhou_DescribableTextures.json"


def _official(folder: Path) -> base.LoadedDataset:
    """Read lists with lines such as `banded/banded_0002.jpg`."""
    names = base.class_folders(folder / "images")
    lists = (folder / name for name in LISTS)
    train, val, test = (base.label_by_folder(base.read_lines(path), names, path) for path in lists)
    return base.from_lists(names, folder / "images", train + val, test)


def _coop(folder: Path) -> base.LoadedDataset:
    return base.coop_by_folder(folder / COOP, folder / "images", base.class_folders(folder / "images"))


class DTD(base.Dataset):
    """The pool is the official train1 and val1, the test set is test1."""

    facts = base.DatasetFacts(
        title="DTD",
        source=SITE,
        license="for research",
        n_classes=47,
        n_pool=3760,
        n_test=1880,
        domain="a {} texture",
        urls=(base.RemoteFile(SITE + "download/dtd-r1.0.1.tar.gz", "dtd", "fff73e5086ae6bdbea199a49dfb8a4c1"),),
    )
    layouts = (
        base.Layout("official", FOLDERS, ("images", *LISTS), _official),
        base.Layout("CoOp", FOLDERS, ("images", COOP), _coop),
    )
