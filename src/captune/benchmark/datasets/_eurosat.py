"""EuroSAT as both of its readers need it: ten folders of satellite images, and the test images of ELEVATER."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from captune.benchmark.datasets._folders import read_folders
from captune.benchmark.datasets._layouts import Layout
from captune.benchmark.datasets._lists import (
    SEEDED_REMARK,
    Listed,
    class_id,
    collect,
    draw_by_class,
    read_lines,
    read_zhou,
)
from captune.benchmark.datasets.base import DatasetFacts, LoadedDataset, RemoteFile
from captune.core.arrays import Ints
from captune.core.errors import InputError
from captune.data.images import ImageCollection

N_IMAGES, N_TEST = 27000, 5000
TEXTS = {
    "AnnualCrop": "annual crop land",
    "Forest": "forest",
    "HerbaceousVegetation": "brushland or shrubland",
    "Highway": "highway or road",
    "Industrial": "industrial buildings or commercial buildings",
    "Pasture": "pasture land",
    "PermanentCrop": "permanent crop land",
    "Residential": "residential buildings or homes or apartments",
    "River": "river",
    "SeaLake": "lake or sea",
}
FOLDERS = ("eurosat", "EuroSAT", "eurosat_clip")
IMAGES = ("2750/AnnualCrop", "2750/SeaLake")


def facts(title: str, n_pool: int) -> DatasetFacts:
    """Return what is known of either reader's dataset."""
    return DatasetFacts(
        title=title,
        source="https://github.com/phelber/EuroSAT",
        license="MIT; contains Copernicus Sentinel data",
        n_classes=10,
        n_pool=n_pool,
        n_test=N_TEST,
        urls=(
            RemoteFile(
                "https://huggingface.co/datasets/torchgeo/eurosat/resolve/"
                "c877bcd43f099cd0196738f714544e355477f3fd/EuroSAT.zip",
                "eurosat/2750",
                "c8fa014336c82ac7804f0398fcb19387",
            ),
        ),
    )


def read_indexed(folder: Path) -> LoadedDataset:
    """Read the test images that ELEVATER's `test.txt` names; the pool is all others."""
    images, labels = read_folders(folder / "2750", tuple(TEXTS))
    source = folder / "test.txt"
    positions = {path.name: i for i, path in enumerate(images.paths)}
    # Lines read `test.zip@.../River_12.jpg 8`; the file's name says the class.
    named = [line.rsplit(" ", 1)[0].replace("@", "/").split("/")[-1] for line in read_lines(source)]
    unknown = [name for name in named if name not in positions]
    if unknown:
        raise InputError(f"{str(source)!r} names {len(unknown)} images that are not there, first {unknown[0]!r}.")
    return _split(images, labels, np.asarray([positions[name] for name in named], dtype=np.int64))


def read_seeded(folder: Path) -> LoadedDataset:
    """Draw the test images by a seeded rule; the pool is all others."""
    images, labels = read_folders(folder / "2750", tuple(TEXTS))
    test = draw_by_class(labels, max(1, round(len(images) * N_TEST / N_IMAGES)))
    return _split(images, labels, test, (SEEDED_REMARK.format(files="test.txt"),))


def read_coop(folder: Path) -> LoadedDataset:
    """Read CoOp's split."""
    source = folder / "split_zhou_EuroSAT.json"
    ids = {name: c for c, name in enumerate(TEXTS)}

    def listed(names: list[str]) -> Listed:
        return names, [class_id(name.split("/")[0], ids, source) for name in names]

    (pool, _), (test, _) = read_zhou(source)
    root = folder / "2750"
    return LoadedDataset(
        tuple(TEXTS.values()), *collect(root, listed(pool), source), *collect(root, listed(test), source)
    )


def _split(images: ImageCollection, labels: Ints, test: Ints, remarks: tuple[str, ...] = ()) -> LoadedDataset:
    pool = np.setdiff1d(np.arange(len(images)), test)
    return LoadedDataset(
        tuple(TEXTS.values()), images.subset(pool), labels[pool], images.subset(test), labels[test], remarks
    )


LAYOUTS = (
    Layout("images and ELEVATER's list", FOLDERS, (*IMAGES, "test.txt"), read_indexed),
    Layout("CoOp", FOLDERS, (*IMAGES, "split_zhou_EuroSAT.json"), read_coop),
    Layout("official images", FOLDERS, IMAGES, read_seeded),
)
