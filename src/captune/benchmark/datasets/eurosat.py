"""EuroSAT: ten kinds of land use in satellite images, 5,000 of them for testing (Helber et al., 2019)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base

SHARE = 5000 / 27000
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
IMAGES = ("2750/AnnualCrop", "2750/SeaLake")
COOP = "split_zhou_EuroSAT.json"


def _elevater(folder: Path) -> base.LoadedDataset:
    """Read ELEVATER's test list, with lines such as `test.zip@.../River_12.jpg 8`; the pool has all other images."""
    images = base.read_folders(folder / "2750", tuple(NAMES))[0].paths
    entries = {path.name: f"{path.parent.name}/{path.name}" for path in images}
    listed = [line.rsplit(" ", 1)[0].replace("@", "/").split("/")[-1] for line in base.read_lines(folder / "test.txt")]
    test = [entries.pop(name) for name in listed]
    return base.by_folder(folder / "2750", list(entries.values()), test, NAMES)


def _coop(folder: Path) -> base.LoadedDataset:
    return base.coop_by_folder(folder / COOP, folder / "2750", NAMES)


def _seeded(folder: Path) -> base.LoadedDataset:
    remark = base.SEEDED_REMARK.format(files="test.txt")
    return base.draw_split(folder / "2750", tuple(NAMES), SHARE, remark, tuple(NAMES.values()))


class EuroSAT(base.Dataset):
    """The pool has all images except the test images; `leaky` splits add them, as in the paper."""

    facts = base.FACTS["eurosat"]
    layouts = (
        base.Layout((*IMAGES, "test.txt"), _elevater),
        base.Layout((*IMAGES, COOP), _coop),
        base.Layout(IMAGES, _seeded),
    )
