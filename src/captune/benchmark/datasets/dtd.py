"""DTD: 47 describable textures, official split 1 (Cimpoi et al., 2014)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base

LISTS = tuple(f"labels/{part}1.txt" for part in ("train", "val", "test"))
COOP = "split_zhou_DescribableTextures.json"


def _official(folder: Path) -> base.LoadedDataset:
    """Read lists with lines such as `banded/banded_0002.jpg`."""
    train, val, test = (base.read_lines(folder / name) for name in LISTS)
    return base.by_folder(folder / "images", train + val, test)


def _coop(folder: Path) -> base.LoadedDataset:
    return base.coop_by_folder(folder / COOP, folder / "images")


class DTD(base.Dataset):
    """The pool is the official train1 and val1, the test set is test1."""

    facts = base.FACTS["dtd"]
    layouts = (
        base.Layout(("images", *LISTS), _official),
        base.Layout(("images", COOP), _coop),
    )
