"""RESISC45: 45 scenes from above, 700 images each, no official split (Cheng et al., 2017)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base

N_IMAGES, N_POOL = 31500, 6300
URL = "https://hf.co/datasets/torchgeo/resisc45/resolve/a826b44d938a883185f11ebe3d512d38b464312f/NWPU-RESISC45.zip"
FOLDERS = ("NWPU-RESISC45", "resisc45/NWPU-RESISC45", "resisc45")
IMAGES = ("airplane", "wetland")
LISTS = ("train.json", "val.json", "test.json")


def _elevater(folder: Path) -> base.LoadedDataset:
    """Read ELEVATER's index files, which list images such as `train.zip@airplane/airplane_001.jpg`."""
    classes, parts = base.class_folders(folder), list[base.Listed]()
    what = "an ELEVATER index file with 'images' that have a 'file_name'"
    for path in (folder / name for name in LISTS):
        names = base.read_index(path, what, lambda content: [str(image["file_name"]) for image in content["images"]])
        entries = ["/".join(name.split("@")[-1].split("/")[-2:]) for name in names]
        parts.append(base.label_by_folder(entries, classes, path))
    train, val, test = parts
    return base.from_lists(base.spaced(classes), folder, train + val, test)


def _seeded(folder: Path) -> base.LoadedDataset:
    """Draw a fifth of every class for the pool."""
    remark = base.SEEDED_REMARK.format(files=", ".join(LISTS))
    return base.draw_split(folder, base.class_folders(folder), N_POOL / N_IMAGES, remark, draws_pool=True)


class RESISC45(base.Dataset):
    """The pool is ELEVATER's train and val, or as many random images; CoOp has no split of this dataset."""

    facts = base.DatasetFacts(
        title="RESISC45",
        source="https://doi.org/10.1109/jproc.2017.2675998",
        license="unclear: copies say unknown or CC BY-NC 4.0; images from Google Earth",
        n_classes=45,
        n_pool=N_POOL,
        n_test=N_IMAGES - N_POOL,
        domain="a satellite photo of {}",
        urls=(base.RemoteFile(URL, "NWPU-RESISC45", "75206b2e16446591afa88e2628744886"),),
    )
    layouts = (
        base.Layout("images and ELEVATER's lists", FOLDERS, (*IMAGES, *LISTS), _elevater),
        base.Layout("official images", FOLDERS, IMAGES, _seeded),
    )
