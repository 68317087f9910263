"""Every reader on a small copy of the real layout: names, order, labels, splits, and what is said when files lack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dataset_copies as copies
import numpy as np
import pytest

from captune.benchmark.datasets.base import Dataset, LoadedDataset
from captune.benchmark.splits import SplitSettings, make_split, shared_images
from captune.core import registry
from captune.core.errors import InputError

EUROSAT = (
    "annual crop land; forest; brushland or shrubland; highway or road; industrial buildings or commercial buildings; "
    "pasture land; permanent crop land; residential buildings or homes or apartments; river; lake or sea"
)


def reader(name: str) -> Dataset:
    found: Dataset = registry.load("datasets", name)()
    return found


def load(name: str, root: Path) -> LoadedDataset:
    assert reader(name).is_found(root)
    return reader(name).load(root)


def listing(data: LoadedDataset, part: str) -> list[tuple[str, str]]:
    """Return (file, class name) of every image of a part."""
    images, labels = (data.pool, data.pool_labels) if part == "pool" else (data.test, data.test_labels)
    return [(path.name, data.names[c]) for path, c in zip(images.paths, labels, strict=True)]


def test_flowers_official(tmp_path: Path) -> None:
    copies.flowers_official(tmp_path)
    data = load("flowers102", tmp_path)
    assert len(data.names) == len(set(data.names)) == 102
    assert listing(data, "pool") == [  # train in the order of the file, then val
        ("image_00009.jpg", "blackberry lily"),
        ("image_00001.jpg", "pink primrose"),
        ("image_00005.jpg", "english marigold"),
        ("image_00002.jpg", "pink primrose"),
        ("image_00006.jpg", "english marigold"),
        ("image_00010.jpg", "blackberry lily"),
    ]
    assert [name for name, _ in listing(data, "test")] == [f"image_{i:05d}.jpg" for i in (3, 4, 7, 8, 11, 12)]
    assert "6 images in the pool here instead of 2040" in data.remarks[0]
    assert "6 test images here instead of 6149" in data.remarks[1]


def test_flowers_coop(tmp_path: Path) -> None:
    copies.flowers_coop(tmp_path)
    data = load("flowers102", tmp_path)
    assert data.pool_labels.tolist() == [0, 4, 101]
    assert listing(data, "test") == [("image_00002.jpg", "pink primrose"), ("image_00010.jpg", "blackberry lily")]


@pytest.mark.parametrize("folder", ["dtd", "dtd/dtd"])
def test_dtd_official(tmp_path: Path, folder: str) -> None:
    copies.dtd_official(tmp_path, folder)
    data = load("dtd", tmp_path)
    assert data.names == ("banded", "polka-dotted", "zigzagged")
    assert [name for name, _ in listing(data, "pool")] == [
        f"{name}_{i:04d}.jpg" for i in (0, 1) for name in copies.DTD_NAMES
    ]
    assert data.pool_labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert listing(data, "test")[1] == ("polka-dotted_0002.jpg", "polka-dotted")


def test_dtd_coop_only_where_the_official_lists_lack(tmp_path: Path) -> None:
    copies.dtd_coop(tmp_path)
    data = load("dtd", tmp_path)
    assert len(data.pool) == 4
    assert listing(data, "test")[0] == ("banded_0001.jpg", "banded")
    copies.dtd_official(tmp_path)
    assert len(load("dtd", tmp_path).pool) == 6


def test_cub(tmp_path: Path) -> None:
    copies.cub_official(tmp_path)
    data = load("cub", tmp_path)
    assert data.names == ("black footed albatross", "laysan albatross")
    assert data.pool_labels.tolist() == [0, 0, 1, 1]
    assert listing(data, "test") == [
        ("Black_footed_Albatross_0000.jpg", "black footed albatross"),
        ("Laysan_Albatross_0001.jpg", "laysan albatross"),
    ]


@pytest.mark.parametrize("write", [copies.aircraft, copies.aircraft_coop])
def test_aircraft(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    data = load("fgvc_aircraft", tmp_path)
    assert data.names == ("An-12", "ATR-42", "BAE 146-200", "F-A-18")  # published seen classes are drawn in this order
    assert listing(data, "pool")[:4] == [
        ("0001000.jpg", "ATR-42"),
        ("0001001.jpg", "An-12"),
        ("0001002.jpg", "F-A-18"),
        ("0001003.jpg", "BAE 146-200"),
    ]
    assert (len(data.pool), len(data.test)) == (8, 4)


def test_eurosat_by_the_seeded_rule(tmp_path: Path) -> None:
    copies.eurosat_official(tmp_path)
    data = load("eurosat", tmp_path)
    assert "; ".join(data.names) == EUROSAT
    assert np.bincount(data.test_labels).tolist() == [5] * 10  # 5,000 of 27,000
    assert not set(data.pool.paths) & set(data.test.paths)
    assert len(data.pool) + len(data.test) == 270
    assert "test.txt" in data.remarks[0]
    again = load("eurosat", tmp_path)
    assert again.test == data.test
    assert all(
        path.parent.name == copies.EUROSAT_FOLDERS[c] for path, c in zip(data.test.paths, data.test_labels, strict=True)
    )


def test_eurosat_with_the_list_of_test_images(tmp_path: Path) -> None:
    copies.eurosat_indexed(tmp_path)
    data = load("eurosat", tmp_path)
    assert [path.name for path in data.test.paths] == [f"{name}_2.jpg" for name in copies.EUROSAT_FOLDERS[::-1]]
    assert data.test_labels.tolist() == list(range(10))[::-1]
    assert len(data.pool) == 30
    assert not any("test.txt" in remark for remark in data.remarks)


def test_eurosat_coop(tmp_path: Path) -> None:
    copies.eurosat_coop(tmp_path)
    data = load("eurosat", tmp_path)
    assert (len(data.pool), len(data.test)) == (20, 10)
    assert data.test_labels.tolist() == list(range(10))


@pytest.mark.parametrize("write", [copies.eurosat_official, copies.eurosat_indexed, copies.eurosat_coop])
def test_a_leaky_split_adds_the_test_images_to_the_pool(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    data = load("eurosat", tmp_path)
    assert shared_images(data.pool, data.test) == []
    leaky = make_split(data, "ul", 0, SplitSettings(leaky=True))
    assert leaky.test == data.test
    assert set(leaky.task.unlabeled.paths) == set(data.pool.paths) | set(data.test.paths)
    assert len(leaky.task.unlabeled) == len(data.pool) + len(data.test)
    folders = [path.parent.name for path in leaky.task.unlabeled.paths]
    assert folders == sorted(folders) == [copies.EUROSAT_FOLDERS[c] for c in leaky.truth.unlabeled_labels]
    assert len(shared_images(leaky.task.unlabeled, leaky.test)) == len(leaky.test)


def test_resisc_by_the_seeded_rule(tmp_path: Path) -> None:
    copies.resisc_official(tmp_path)
    data = load("resisc45", tmp_path)
    assert data.names == ("airplane", "circular farmland", "wetland")
    assert np.bincount(data.pool_labels).tolist() == [2, 2, 2]  # a fifth
    assert np.bincount(data.test_labels).tolist() == [8, 8, 8]
    assert not set(data.pool.paths) & set(data.test.paths)


def test_resisc_with_index_files(tmp_path: Path) -> None:
    copies.resisc_indexed(tmp_path)
    data = load("resisc45", tmp_path)
    assert [path.name for path in data.pool.paths] == [
        f"{n}_{i}.jpg" for i in ("003", "001") for n in copies.RESISC_NAMES
    ]
    assert len(data.test) == 6
    assert data.test_labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_ucmerced_and_a_folder_of_ones_own(tmp_path: Path) -> None:
    for part, n_images in (("train", 3), ("test", 2)):
        for c, name in enumerate(("golf course", "mobile_home")):
            for i in range(n_images):
                copies.write_image(tmp_path / "ucmerced" / part / name / f"{i}.jpg", 10 * c + i)
    data = load("ucmerced", tmp_path)
    assert data.names == ("golf course", "mobile_home")
    assert data.pool_labels.tolist() == [0, 0, 0, 1, 1, 1]
    own = load("folder", tmp_path / "ucmerced")
    assert own.names == ("golf course", "mobile home")
    assert (own.pool.paths, own.test.paths) == (data.pool.paths, data.test.paths)
    mixed = load("folder", tmp_path / "ucmerced" / "train")
    assert np.bincount(mixed.pool_labels).tolist() == [2, 2]
    assert np.bincount(mixed.test_labels).tolist() == [1, 1]
    assert "40%" in mixed.remarks[0]


LOOKED_FOR = {
    "flowers102": ("flowers-102/setid.mat", "oxford_flowers/split_zhou_OxfordFlowers.json"),
    "dtd": ("dtd/labels/train1.txt", "dtd/split_zhou_DescribableTextures.json"),
    "cub": ("CUB_200_2011/train_test_split.txt",),
    "fgvc_aircraft": ("fgvc-aircraft-2013b/data/images_variant_val.txt", "fgvc_aircraft/variants.txt"),
    "eurosat": ("eurosat/2750/AnnualCrop", "eurosat/test.txt", "eurosat/split_zhou_EuroSAT.json"),
    "resisc45": ("NWPU-RESISC45/airplane", "NWPU-RESISC45/test.json"),
    "ucmerced": ("ucmerced/train", "ucmerced/test"),
    "pets": ("pets/train", "pets/test"),
    "npz": ("FILE.npz",),
    "folder": ("train/<class>/",),
}


@pytest.mark.parametrize("name", [name for name in registry.names("datasets") if name != "patterns"])
def test_what_was_looked_for_is_said(name: str, tmp_path: Path) -> None:
    assert not reader(name).is_found(tmp_path)
    with pytest.raises(InputError) as caught:
        reader(name).load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    for words in LOOKED_FOR[name]:
        assert words in str(caught.value)
    assert str(caught.value).count("curl ") == len(reader(name).facts.urls)


def test_the_one_file_that_lacks_is_said(tmp_path: Path) -> None:
    copies.flowers_official(tmp_path)
    (tmp_path / "flowers-102" / "setid.mat").unlink()
    with pytest.raises(InputError, match=r"only missing: flowers-102/setid\.mat"):
        reader("flowers102").load(tmp_path)


def _cut(path: str, content: bytes | None) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        if content is None:
            (root / path).unlink()
        else:
            (root / path).write_bytes(content)

    return change


@pytest.mark.parametrize(
    ("name", "write", "change", "words"),
    [
        ("flowers102", copies.flowers_official, _cut("flowers-102/setid.mat", b"broken"), "setid.mat"),
        ("flowers102", copies.flowers_official, _cut("flowers-102/jpg/image_00005.jpg", None), "1 of 6 images"),
        (
            "flowers102",
            copies.flowers_coop,
            _cut("oxford_flowers/split_zhou_OxfordFlowers.json", b"[]"),
            "split_zhou_OxfordFlowers",
        ),
        ("dtd", copies.dtd_official, _cut("dtd/labels/val1.txt", b"furry/a.jpg\n"), "'furry'"),
        ("dtd", copies.dtd_official, _cut("dtd/labels/val1.txt", b"banded/../../x.jpg\n"), r"banded/\.\./\.\./x\.jpg"),
        ("cub", copies.cub_official, _cut("CUB_200_2011/train_test_split.txt", b"1 1\n"), "train_test_split.txt"),
        ("cub", copies.cub_official, _cut("CUB_200_2011/classes.txt", b"1\n"), "classes.txt"),
        ("fgvc_aircraft", copies.aircraft, _cut("fgvc-aircraft-2013b/data/variants.txt", b"\xff\xfe"), "variants.txt"),
        ("eurosat", copies.eurosat_indexed, _cut("eurosat/test.txt", b"a@Forest_99.jpg 1\n"), "'Forest_99.jpg'"),
        ("resisc45", copies.resisc_indexed, _cut("NWPU-RESISC45/val.json", b"{}"), "val.json"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, write: Any, change: Any, words: str) -> None:
    write(tmp_path)
    change(tmp_path)
    with pytest.raises(InputError, match=words):
        reader(name).load(tmp_path)
