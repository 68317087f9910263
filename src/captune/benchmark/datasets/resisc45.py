"""RESISC45: 45 scenes from above, 700 images each, no official split (Cheng et al., 2017)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base
from captune.core.files import read_json

SHARE = 6300 / 31500
IMAGES = ("airplane", "wetland")
LISTS = ("train.json", "val.json", "test.json")


def _elevater(folder: Path) -> base.LoadedDataset:
    """Read ELEVATER's index files, which list images such as `train.zip@airplane/airplane_001.jpg`."""
    train, val, test = (
        ["/".join(image["file_name"].split("@")[-1].split("/")[-2:]) for image in read_json(folder / name)["images"]]
        for name in LISTS
    )
    return base.by_folder(folder, train + val, test)


def _seeded(folder: Path) -> base.LoadedDataset:
    """Draw a fifth of every class for the pool."""
    remark = base.SEEDED_REMARK.format(files=", ".join(LISTS))
    return base.draw_split(folder, base.class_folders(folder), SHARE, remark, draws_pool=True)


class RESISC45(base.Dataset):
    """The pool is ELEVATER's train and val, or as many random images; CoOp has no split of this dataset."""

    facts = base.FACTS["resisc45"]
    layouts = (
        base.Layout((*IMAGES, *LISTS), _elevater),
        base.Layout(IMAGES, _seeded),
    )
