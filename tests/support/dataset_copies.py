"""Small copies of datasets as their official archives and CoOp lay them out, with tiny images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

EUROSAT_FOLDERS = (
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
)


def write_image(path: Path, number: int = 0) -> None:
    """Write a 4 x 4 image that no other number has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, "PNG" if path.suffix == ".png" else "JPEG", quality=95)


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_zhou(path: Path, **parts: Sequence[tuple[str, int, str]]) -> None:
    path.write_text(json.dumps({part: [list(entry) for entry in entries] for part, entries in parts.items()}))


def flowers_images(folder: Path, n_images: int = 12) -> None:
    for number in range(1, n_images + 1):
        write_image(folder / "jpg" / f"image_{number:05d}.jpg", number)


def flowers_official(root: Path) -> None:
    """Twelve images of flowers 1, 5 and 102, in the binary files of MATLAB that the archive has."""
    from scipy.io import savemat

    folder = root / "flowers-102"
    flowers_images(folder)
    labels = np.array([[1, 1, 1, 1, 5, 5, 5, 5, 102, 102, 102, 102]], dtype=np.uint8)
    savemat(folder / "imagelabels.mat", {"labels": labels})
    sets = {"trnid": [[9, 1, 5]], "valid": [[2, 6, 10]], "tstid": [[3, 4, 7, 8, 11, 12]]}
    savemat(folder / "setid.mat", {key: np.array(ids, dtype=np.uint16) for key, ids in sets.items()})


def flowers_coop(root: Path) -> None:
    folder = root / "oxford_flowers"
    flowers_images(folder)
    write_zhou(
        folder / "split_zhou_OxfordFlowers.json",
        train=[("image_00001.jpg", 0, "pink primrose"), ("image_00005.jpg", 4, "english marigold")],
        val=[("image_00009.jpg", 101, "blackberry lily")],
        test=[("image_00002.jpg", 0, "pink primrose"), ("image_00010.jpg", 101, "blackberry lily")],
    )


DTD_NAMES = ("banded", "polka-dotted", "zigzagged")


def dtd_images(folder: Path) -> None:
    for c, name in enumerate(DTD_NAMES):
        for i in range(3):
            write_image(folder / "images" / name / f"{name}_{i:04d}.jpg", 10 * c + i)


def dtd_official(root: Path, folder: str = "dtd") -> None:
    dtd_images(root / folder)
    for i, part in enumerate(("train", "val", "test")):
        write_lines(root / folder / "labels" / f"{part}1.txt", [f"{name}/{name}_{i:04d}.jpg" for name in DTD_NAMES])


def dtd_coop(root: Path) -> None:
    folder = root / "dtd"
    dtd_images(folder)
    entry = [[(f"{name}/{name}_{i:04d}.jpg", c, name) for c, name in enumerate(DTD_NAMES)] for i in range(3)]
    write_zhou(folder / "split_zhou_DescribableTextures.json", train=entry[2], val=entry[0][:1], test=entry[1])


def cub_official(root: Path) -> None:
    """Two birds; the numbers of images are not in order of the split, as in the archive."""
    folder = root / "CUB_200_2011"
    birds = ("001.Black_footed_Albatross", "002.Laysan_Albatross")
    images = [f"{bird}/{bird[4:]}_{i:04d}.jpg" for bird in birds for i in range(3)]
    for i, name in enumerate(images):
        write_image(folder / "images" / name, i)
    write_lines(folder / "classes.txt", [f"{c + 1} {bird}" for c, bird in enumerate(birds)])
    write_lines(folder / "images.txt", [f"{i + 1} {name}" for i, name in enumerate(images)])
    write_lines(folder / "image_class_labels.txt", [f"{i + 1} {1 + i // 3}" for i in range(6)])
    write_lines(folder / "train_test_split.txt", [f"{i + 1} {part}" for i, part in enumerate([0, 1, 1, 1, 0, 1])])


def aircraft(root: Path, folder: str = "fgvc-aircraft-2013b/data") -> None:
    """Three variants in the order of the archive (capitals first), one with a slash and one with spaces."""
    base = root / folder
    write_lines(base / "variants.txt", ["ATR-42", "An-12", "F/A-18", "BAE 146-200"])
    images = {f"{1000 + i:07d}": name for i, name in enumerate(["ATR-42", "An-12", "F/A-18", "BAE 146-200"] * 3)}
    for i, image in enumerate(images):
        write_image(base / "images" / f"{image}.jpg", i)
    rows = [f"{image} {name}" for image, name in images.items()]
    for i, part in enumerate(("train", "val", "test")):
        write_lines(base / f"images_variant_{part}.txt", rows[4 * i : 4 * i + 4])


def aircraft_coop(root: Path) -> None:
    aircraft(root, "fgvc_aircraft")


def eurosat_images(folder: Path, per_class: int = 27) -> None:
    for c, name in enumerate(EUROSAT_FOLDERS):
        for i in range(1, per_class + 1):
            write_image(folder / "2750" / name / f"{name}_{i}.jpg", 100 * c + i)


def eurosat_official(root: Path) -> None:
    eurosat_images(root / "eurosat")


def eurosat_indexed(root: Path) -> None:
    eurosat_images(root / "eurosat", per_class=4)
    lines = [f"test.zip@{name}/{name}_2.jpg {c}" for c, name in enumerate(EUROSAT_FOLDERS)]
    write_lines(root / "eurosat" / "test.txt", lines[::-1])


def eurosat_coop(root: Path) -> None:
    folder = root / "eurosat"
    eurosat_images(folder, per_class=3)
    entry = [[(f"{name}/{name}_{i}.jpg", c, name) for c, name in enumerate(EUROSAT_FOLDERS)] for i in (1, 2, 3)]
    write_zhou(folder / "split_zhou_EuroSAT.json", train=entry[0], val=entry[1], test=entry[2])


RESISC_NAMES = ("airplane", "circular_farmland", "wetland")


def resisc_official(root: Path) -> None:
    for c, name in enumerate(RESISC_NAMES):
        for i in range(1, 11):
            write_image(root / "NWPU-RESISC45" / name / f"{name}_{i:03d}.jpg", 100 * c + i)


def resisc_indexed(root: Path) -> None:
    resisc_official(root)
    for part, numbers in (("train", (3,)), ("val", (1,)), ("test", (2, 4))):
        images = [{"file_name": f"{part}.zip@{name}/{name}_{i:03d}.jpg"} for name in RESISC_NAMES for i in numbers]
        (root / "NWPU-RESISC45" / f"{part}.json").write_text(json.dumps({"images": images, "categories": []}))
