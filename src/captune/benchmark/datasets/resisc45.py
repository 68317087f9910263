"""RESISC45: 45 scenes from above, 700 images each, no official split (Cheng et al., 2017)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from captune.benchmark.datasets._readers import (
    SEEDED_REMARK,
    Listed,
    class_folders,
    draw_by_class,
    from_lists,
    from_positions,
    label_by_folder,
    read_folders,
    spaced,
)
from captune.benchmark.datasets.base import Dataset, DatasetFacts, Layout, LoadedDataset, RemoteFile
from captune.core.cards import read_json
from captune.core.errors import InputError

N_IMAGES, N_POOL = 31500, 6300
URL = "https://hf.co/datasets/torchgeo/resisc45/resolve/a826b44d938a883185f11ebe3d512d38b464312f/NWPU-RESISC45.zip"
FOLDERS = ("NWPU-RESISC45", "resisc45/NWPU-RESISC45", "resisc45")
IMAGES = ("airplane", "wetland")
LISTS = ("train.json", "val.json", "test.json")


def _elevater(folder: Path) -> LoadedDataset:
    """Read ELEVATER's index files, which list images such as `train.zip@airplane/airplane_001.jpg`."""
    classes = class_folders(folder)
    (train, train_ids), (val, val_ids), test = (_listed(folder / name, classes) for name in LISTS)
    pool = (train + val, train_ids + val_ids)
    return from_lists(spaced(classes), folder, pool, test, folder / LISTS[0], folder / LISTS[2])


def _listed(path: Path, classes: tuple[str, ...]) -> Listed:
    try:
        content = read_json(path)
        names = [str(image["file_name"]).split("@")[-1] for image in content["images"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{str(path)!r} is not an ELEVATER index file with 'images' that have a 'file_name': "
            f"{type(error).__name__}: {error}."
        ) from error
    return label_by_folder(["/".join(name.split("/")[-2:]) for name in names], classes, path)


def _seeded(folder: Path) -> LoadedDataset:
    """Draw a fifth of every class for the pool."""
    classes = class_folders(folder)
    images, labels = read_folders(folder, classes)
    pool = draw_by_class(labels, max(1, round(len(images) * N_POOL / N_IMAGES)))
    test = np.setdiff1d(np.arange(len(images)), pool)
    return from_positions(spaced(classes), images, labels, test, (SEEDED_REMARK.format(files=", ".join(LISTS)),))


class RESISC45(Dataset):
    """The pool is ELEVATER's train and val, or as many random images; CoOp has no split of this dataset."""

    facts = DatasetFacts(
        title="RESISC45",
        source="https://doi.org/10.1109/jproc.2017.2675998",
        license="unclear: copies say unknown or CC BY-NC 4.0; images from Google Earth",
        n_classes=45,
        n_pool=N_POOL,
        n_test=N_IMAGES - N_POOL,
        domain="a satellite photo of {}",
        urls=(RemoteFile(URL, "NWPU-RESISC45", "75206b2e16446591afa88e2628744886"),),
    )
    layouts = (
        Layout("images and ELEVATER's lists", FOLDERS, (*IMAGES, *LISTS), _elevater),
        Layout("official images", FOLDERS, IMAGES, _seeded),
    )
