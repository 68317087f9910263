"""Flowers102: 102 flowers of the United Kingdom, official split (Nilsback and Zisserman, 2008)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from captune.benchmark.datasets._flower_names import NAMES
from captune.benchmark.datasets._layouts import Layout, LayoutDataset
from captune.benchmark.datasets._lists import Listed, collect, read_zhou
from captune.benchmark.datasets.base import DatasetFacts, LoadedDataset, RemoteFile
from captune.core.arrays import Ints
from captune.core.errors import InputError

SITE = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
FOLDERS = ("flowers-102", "flowers102", "oxford_flowers")


def _official(folder: Path) -> LoadedDataset:
    """Read `setid.mat` (image numbers of train, val and test) and `imagelabels.mat` (labels from 1)."""
    source = folder / "setid.mat"
    labels = _numbers(folder / "imagelabels.mat", "labels", most=len(NAMES))
    train, val, test = (_numbers(source, key, most=len(labels)) for key in ("trnid", "valid", "tstid"))

    def listed(numbers: Ints) -> Listed:
        return [f"image_{number:05d}.jpg" for number in numbers], (labels[numbers - 1] - 1).tolist()

    pool, measured = listed(np.concatenate([train, val])), listed(test)
    return LoadedDataset(NAMES, *collect(folder / "jpg", pool, source), *collect(folder / "jpg", measured, source))


def _coop(folder: Path) -> LoadedDataset:
    source = folder / "split_zhou_OxfordFlowers.json"
    pool, test = read_zhou(source)
    return LoadedDataset(NAMES, *collect(folder / "jpg", pool, source), *collect(folder / "jpg", test, source))


def _numbers(path: Path, key: str, most: int) -> Ints:
    """Return one row of numbers from 1 to `most` of a MATLAB file."""
    from scipy.io import loadmat

    try:
        values = np.asarray(loadmat(path, variable_names=[key])[key]).ravel().astype(np.int64)
    except Exception as error:  # scipy raises many kinds for damaged files
        raise InputError(f"{str(path)!r} holds no numbers {key!r}: {type(error).__name__}: {error}.") from error
    if values.size == 0 or values.min() < 1 or values.max() > most:
        raise InputError(f"{key!r} in {str(path)!r} must hold numbers from 1 to {most}.")
    return values


class Flowers102(LayoutDataset):
    """Pool: official train and val."""

    facts = DatasetFacts(
        title="Flowers102",
        source=SITE,
        license="none stated; images from the web",
        n_classes=102,
        n_pool=2040,
        n_test=6149,
        urls=(
            RemoteFile(SITE + "102flowers.tgz", "flowers-102/jpg", "52808999861908f626f3c1f4e79d11fa"),
            RemoteFile(SITE + "imagelabels.mat", "flowers-102/imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
            RemoteFile(SITE + "setid.mat", "flowers-102/setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
        ),
    )
    layouts = (
        Layout("official", FOLDERS, ("jpg", "imagelabels.mat", "setid.mat"), _official),
        Layout("CoOp", FOLDERS, ("jpg", "split_zhou_OxfordFlowers.json"), _coop),
    )
