"""EuroSAT: ten kinds of land use in satellite images, 5,000 of them for testing (Helber et al., 2019)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from captune.benchmark.datasets import base
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
COOP = "split_zhou_EuroSAT.json"


def _elevater(folder: Path) -> base.LoadedDataset:
    """Read ELEVATER's test list, with lines such as `test.zip@.../River_12.jpg 8`."""
    images, labels = base.read_folders(folder / "2750", tuple(NAMES))
    positions = {path.name: i for i, path in enumerate(images.paths)}
    lines = base.read_lines(folder / "test.txt")
    listed = [line.rsplit(" ", 1)[0].replace("@", "/").split("/")[-1] for line in lines]
    unknown = [name for name in listed if name not in positions]
    if unknown:
        raise InputError(f"{len(unknown)} images of test.txt in {str(folder)!r} are missing, first {unknown[0]!r}.")
    test = np.asarray([positions[name] for name in listed], dtype=np.int64)
    return base.from_positions(tuple(NAMES.values()), images, labels, test)


def _coop(folder: Path) -> base.LoadedDataset:
    return base.coop_by_folder(folder / COOP, folder / "2750", tuple(NAMES), tuple(NAMES.values()))


def _seeded(folder: Path) -> base.LoadedDataset:
    remark = base.SEEDED_REMARK.format(files="test.txt")
    return base.draw_split(folder / "2750", tuple(NAMES), N_TEST / N_IMAGES, remark, tuple(NAMES.values()))


class EuroSAT(base.Dataset):
    """The pool has all images except the test images; `leaky` splits add them, as in the paper."""

    facts = base.DatasetFacts(
        title="EuroSAT",
        source="https://github.com/phelber/EuroSAT",
        license="MIT; contains Copernicus Sentinel data",
        n_classes=10,
        n_pool=N_IMAGES - N_TEST,
        n_test=N_TEST,
        domain="a satellite photo of {}",
        urls=(base.RemoteFile(URL, "eurosat/2750", "c8fa014336c82ac7804f0398fcb19387"),),
    )
    layouts = (
        base.Layout("images and ELEVATER's list", FOLDERS, (*IMAGES, "test.txt"), _elevater),
        base.Layout("CoOp", FOLDERS, (*IMAGES, COOP), _coop),
        base.Layout("official images", FOLDERS, IMAGES, _seeded),
    )
