"""Flowers102: 102 flower species of the United Kingdom, official split (Nilsback and Zisserman, 2008)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base

COOP = "split_zhou_OxfordFlowers.json"
NAMES = base.FACTS["flowers102"].names


def _official(folder: Path) -> base.LoadedDataset:
    """Read `setid.mat` (image numbers of train, val and test) and `imagelabels.mat` (labels), both from 1."""
    from scipy.io import loadmat

    labels, numbers = loadmat(folder / "imagelabels.mat")["labels"].ravel(), loadmat(folder / "setid.mat")
    train, val, test = (
        [(f"image_{number:05d}.jpg", int(labels[number - 1]) - 1) for number in numbers[part].ravel().tolist()]
        for part in ("trnid", "valid", "tstid")
    )
    return base.from_lists(NAMES, folder / "jpg", train + val, test)


def _coop(folder: Path) -> base.LoadedDataset:
    return base.from_lists(NAMES, folder / "jpg", *base.read_coop(folder / COOP))


class Flowers102(base.Dataset):
    """The pool is the official train and val."""

    facts = base.FACTS["flowers102"]
    layouts = (
        base.Layout(("jpg", "imagelabels.mat", "setid.mat"), _official),
        base.Layout(("jpg", COOP), _coop),
    )
