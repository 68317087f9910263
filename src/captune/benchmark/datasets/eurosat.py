"""EuroSAT: ten kinds of land use in satellite images, 5,000 of them for testing (Helber et al., 2019)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from captune.benchmark.datasets._readers import (
    SEEDED_REMARK,
    draw_by_class,
    from_lists,
    from_positions,
    label_by_folder,
    read_coop,
    read_folders,
    read_lines,
)
from captune.benchmark.datasets.base import Dataset, DatasetFacts, Layout, LoadedDataset, RemoteFile
from captune.core.errors import InputError

N_IMAGES, N_TEST = 27000, 5000
NAMES = {
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
URL = "https://huggingface.co/datasets/torchgeo/eurosat/resolve/c877bcd43f099cd0196738f714544e355477f3fd/EuroSAT.zip"
FOLDERS = ("eurosat", "EuroSAT", "eurosat_clip")
IMAGES = ("2750/AnnualCrop", "2750/SeaLake")


def _elevater(folder: Path) -> LoadedDataset:
    """Read ELEVATER's test list, with lines such as `test.zip@.../River_12.jpg 8`."""
    images, labels = read_folders(folder / "2750", tuple(NAMES))
    source = folder / "test.txt"
    positions = {path.name: i for i, path in enumerate(images.paths)}
    listed = [line.rsplit(" ", 1)[0].replace("@", "/").split("/")[-1] for line in read_lines(source)]
    unknown = [name for name in listed if name not in positions]
    if unknown:
        raise InputError(f"{len(unknown)} images listed in {str(source)!r} are missing, first {unknown[0]!r}.")
    test = np.asarray([positions[name] for name in listed], dtype=np.int64)
    return from_positions(tuple(NAMES.values()), images, labels, test)


def _coop(folder: Path) -> LoadedDataset:
    source, classes = folder / "split_zhou_EuroSAT.json", tuple(NAMES)
    pool, test = (label_by_folder(entries, classes, source) for entries, _ in read_coop(source))
    return from_lists(tuple(NAMES.values()), folder / "2750", pool, test, source)


def _seeded(folder: Path) -> LoadedDataset:
    images, labels = read_folders(folder / "2750", tuple(NAMES))
    test = draw_by_class(labels, max(1, round(len(images) * N_TEST / N_IMAGES)))
    return from_positions(tuple(NAMES.values()), images, labels, test, (SEEDED_REMARK.format(files="test.txt"),))


class EuroSAT(Dataset):
    """The pool has all images except the test images; `leaky` splits add them, as in the paper."""

    facts = DatasetFacts(
        title="EuroSAT",
        source="https://github.com/phelber/EuroSAT",
        license="MIT; contains Copernicus Sentinel data",
        n_classes=10,
        n_pool=N_IMAGES - N_TEST,
        n_test=N_TEST,
        domain="a satellite photo of {}",
        urls=(RemoteFile(URL, "eurosat/2750", "c8fa014336c82ac7804f0398fcb19387"),),
    )
    layouts = (
        Layout("images and ELEVATER's list", FOLDERS, (*IMAGES, "test.txt"), _elevater),
        Layout("CoOp", FOLDERS, (*IMAGES, "split_zhou_EuroSAT.json"), _coop),
        Layout("official images", FOLDERS, IMAGES, _seeded),
    )
