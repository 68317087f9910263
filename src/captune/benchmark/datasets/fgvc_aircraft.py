"""FGVCAircraft: 100 variants of aircraft, official split (Maji et al., 2013)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets._layouts import Layout, LayoutDataset
from captune.benchmark.datasets._lists import Listed, class_id, collect, read_lines, read_pairs
from captune.benchmark.datasets.base import DatasetFacts, LoadedDataset, RemoteFile

SITE = "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/"
LISTS = tuple(f"images_variant_{part}.txt" for part in ("train", "val", "test"))
NEEDS = ("images", "variants.txt", *LISTS)


def _read(folder: Path) -> LoadedDataset:
    """Read lines such as `1025794 707-320`.

    Classes stand in an order that ignores case, from which published seen classes are drawn; the file's own does not.
    """
    variants = sorted(read_lines(folder / "variants.txt"), key=str.casefold)
    ids = {name: c for c, name in enumerate(variants)}

    def listed(name: str) -> Listed:
        pairs = read_pairs(folder / name)
        return [f"{image}.jpg" for image, _ in pairs], [class_id(label, ids, folder / name) for _, label in pairs]

    (train, train_ids), (val, val_ids), test = (listed(name) for name in LISTS)
    names = tuple(name.replace("/", "-") for name in variants)
    images, source = folder / "images", folder / LISTS[0]
    pool = (train + val, train_ids + val_ids)
    return LoadedDataset(names, *collect(images, pool, source), *collect(images, test, folder / LISTS[2]))


class FGVCAircraft(LayoutDataset):
    """Pool: official train and val; CoOp has the same files one folder higher."""

    facts = DatasetFacts(
        title="FGVCAircraft",
        source=SITE,
        license="for non-commercial research only; photographs belong to their owners",
        n_classes=100,
        n_pool=6667,
        n_test=3333,
        urls=(
            RemoteFile(
                SITE + "archives/fgvc-aircraft-2013b.tar.gz",
                "fgvc-aircraft-2013b",
                "d4acdd33327262359767eeaa97a4f732",
            ),
        ),
    )
    layouts = (
        Layout("official", ("fgvc-aircraft-2013b/data",), NEEDS, _read),
        Layout("CoOp", ("fgvc_aircraft",), NEEDS, _read),
    )
