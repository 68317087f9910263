"""DTD: 47 describable textures, official split 1 (Cimpoi et al., 2014)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets._readers import class_folders, from_lists, label_by_folder, read_coop, read_lines
from captune.benchmark.datasets.base import Dataset, DatasetFacts, Layout, LoadedDataset, RemoteFile

SITE = "https://www.robots.ox.ac.uk/~vgg/data/dtd/"
FOLDERS = ("dtd", "dtd/dtd", "DTD")
LISTS = tuple(f"labels/{part}1.txt" for part in ("train", "val", "test"))
COOP = "split_zhou_DescribableTextures.json"


def _official(folder: Path) -> LoadedDataset:
    """Read lists with lines such as `banded/banded_0002.jpg`."""
    train, val, test = (read_lines(folder / name) for name in LISTS)
    return _load(folder, train + val, test, folder / LISTS[0])


def _coop(folder: Path) -> LoadedDataset:
    (pool, _), (test, _) = read_coop(folder / COOP)
    return _load(folder, pool, test, folder / COOP)


def _load(folder: Path, pool: list[str], test: list[str], source: Path) -> LoadedDataset:
    names = class_folders(folder / "images")
    pool_listed, test_listed = (label_by_folder(entries, names, source) for entries in (pool, test))
    return from_lists(names, folder / "images", pool_listed, test_listed, source)


class DTD(Dataset):
    """The pool is the official train1 and val1, the test set is test1."""

    facts = DatasetFacts(
        title="DTD",
        source=SITE,
        license="for research",
        n_classes=47,
        n_pool=3760,
        n_test=1880,
        domain="a {} texture",
        urls=(RemoteFile(SITE + "download/dtd-r1.0.1.tar.gz", "dtd", "fff73e5086ae6bdbea199a49dfb8a4c1"),),
    )
    layouts = (
        Layout("official", FOLDERS, ("images", *LISTS), _official),
        Layout("CoOp", FOLDERS, ("images", COOP), _coop),
    )
