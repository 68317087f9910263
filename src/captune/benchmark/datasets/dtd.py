"""DTD: 47 describable textures, official split 1 (Cimpoi et al., 2014)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets._folders import class_folders
from captune.benchmark.datasets._layouts import Layout, LayoutDataset
from captune.benchmark.datasets._lists import Listed, class_id, collect, read_lines, read_zhou
from captune.benchmark.datasets.base import DatasetFacts, LoadedDataset, RemoteFile

SITE = "https://www.robots.ox.ac.uk/~vgg/data/dtd/"
FOLDERS = ("dtd", "dtd/dtd", "DTD")


def _official(folder: Path) -> LoadedDataset:
    """Read `labels/train1.txt`, `val1.txt` and `test1.txt`, with lines such as `banded/banded_0002.jpg`."""
    lists = [folder / "labels" / f"{part}1.txt" for part in ("train", "val", "test")]
    train, val, test = (read_lines(path) for path in lists)
    return _load(folder, train + val, test, lists[0])


def _coop(folder: Path) -> LoadedDataset:
    source = folder / "split_zhou_DescribableTextures.json"
    (pool, _), (test, _) = read_zhou(source)
    return _load(folder, pool, test, source)


def _load(folder: Path, pool: list[str], test: list[str], source: Path) -> LoadedDataset:
    images = folder / "images"
    names = class_folders(images)
    ids = {name: c for c, name in enumerate(names)}

    def listed(entries: list[str]) -> Listed:
        return entries, [class_id(entry.split("/")[0], ids, source) for entry in entries]

    return LoadedDataset(names, *collect(images, listed(pool), source), *collect(images, listed(test), source))


class DTD(LayoutDataset):
    """Pool: official train1 and val1; test: test1."""

    facts = DatasetFacts(
        title="DTD",
        source=SITE,
        license="for research",
        n_classes=47,
        n_pool=3760,
        n_test=1880,
        urls=(RemoteFile(SITE + "download/dtd-r1.0.1.tar.gz", "dtd", "fff73e5086ae6bdbea199a49dfb8a4c1"),),
    )
    layouts = (
        Layout("official", FOLDERS, ("images", "labels/train1.txt", "labels/val1.txt", "labels/test1.txt"), _official),
        Layout("CoOp", FOLDERS, ("images", "split_zhou_DescribableTextures.json"), _coop),
    )
