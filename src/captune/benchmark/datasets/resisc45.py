"""RESISC45: 45 scenes from above, 700 images each, no official split (Cheng et al., 2017)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from captune.benchmark.datasets._folders import class_folders, read_folders
from captune.benchmark.datasets._layouts import Layout, LayoutDataset
from captune.benchmark.datasets._lists import SEEDED_REMARK, Listed, class_id, collect, draw_by_class
from captune.benchmark.datasets.base import DatasetFacts, LoadedDataset, RemoteFile
from captune.core.errors import InputError

N_IMAGES, N_POOL = 31500, 6300
FOLDERS = ("NWPU-RESISC45", "resisc45/NWPU-RESISC45", "resisc45")
IMAGES = ("airplane", "wetland")
INDEX = ("train.json", "val.json", "test.json")


def _indexed(folder: Path) -> LoadedDataset:
    """Read the index files of ELEVATER, whose images are named such as `train.zip@airplane/airplane_001.jpg`."""
    classes = class_folders(folder)
    ids = {name: c for c, name in enumerate(classes)}
    (train, train_ids), (val, val_ids), test = (_listed(folder / name, ids) for name in INDEX)
    pool = (train + val, train_ids + val_ids)
    source = folder / INDEX[0]
    return LoadedDataset(_names(classes), *collect(folder, pool, source), *collect(folder, test, folder / INDEX[2]))


def _seeded(folder: Path) -> LoadedDataset:
    """Draw a fifth of every class for the pool."""
    classes = class_folders(folder)
    images, labels = read_folders(folder, classes)
    pool = draw_by_class(labels, max(1, round(len(images) * N_POOL / N_IMAGES)))
    test = np.setdiff1d(np.arange(len(images)), pool)
    remarks = (SEEDED_REMARK.format(files=", ".join(INDEX)),)
    return LoadedDataset(_names(classes), images.subset(pool), labels[pool], images.subset(test), labels[test], remarks)


def _listed(path: Path, ids: dict[str, int]) -> Listed:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names = [str(image["file_name"]).split("@")[-1] for image in content["images"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{str(path)!r} is no index file of ELEVATER, which holds 'images' with a 'file_name' each: "
            f"{type(error).__name__}: {error}."
        ) from error
    pairs = ["/".join(name.split("/")[-2:]) for name in names]
    return pairs, [class_id(pair.split("/")[0], ids, path) for pair in pairs]


def _names(classes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.replace("_", " ") for name in classes)


class RESISC45(LayoutDataset):
    """Pool: train and val of ELEVATER, or as many images by a seeded rule; CoOp has no split of this dataset."""

    facts = DatasetFacts(
        title="RESISC45",
        source="https://doi.org/10.1109/jproc.2017.2675998",
        license="unclear: copies say unknown or CC BY-NC 4.0; images from Google Earth",
        n_classes=45,
        n_pool=N_POOL,
        n_test=N_IMAGES - N_POOL,
        urls=(
            RemoteFile(
                "https://hf.co/datasets/torchgeo/resisc45/resolve/"
                "a826b44d938a883185f11ebe3d512d38b464312f/NWPU-RESISC45.zip",
                "NWPU-RESISC45",
                "75206b2e16446591afa88e2628744886",
            ),
        ),
    )
    layouts = (
        Layout("images and ELEVATER's lists", FOLDERS, (*IMAGES, *INDEX), _indexed),
        Layout("official images", FOLDERS, IMAGES, _seeded),
    )
