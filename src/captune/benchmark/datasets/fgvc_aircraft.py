"""FGVCAircraft: 100 aircraft variants, official split (Maji et al., 2013)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets._readers import Listed, class_id, from_lists, read_lines, read_pairs
from captune.benchmark.datasets.base import Dataset, DatasetFacts, Layout, LoadedDataset, RemoteFile

SITE = "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/"
ARCHIVE = RemoteFile(
    SITE + "archives/fgvc-aircraft-2013b.tar.gz", "fgvc-aircraft-2013b", "d4acdd33327262359767eeaa97a4f732"
)
LISTS = tuple(f"images_variant_{part}.txt" for part in ("train", "val", "test"))
NEEDS = ("images", "variants.txt", *LISTS)


def _read(folder: Path) -> LoadedDataset:
    """Read lines such as `1025794 707-320`; seen classes were drawn from the classes sorted ignoring case."""
    variants = sorted(read_lines(folder / "variants.txt"), key=str.casefold)

    def listed(name: str) -> Listed:
        pairs = read_pairs(folder / name)
        return [f"{image}.jpg" for image, _ in pairs], [class_id(label, variants, folder / name) for _, label in pairs]

    (train, train_ids), (val, val_ids), test = (listed(name) for name in LISTS)
    names = [name.replace("/", "-") for name in variants]
    pool = (train + val, train_ids + val_ids)
    return from_lists(names, folder / "images", pool, test, folder / LISTS[0], folder / LISTS[2])


class FGVCAircraft(Dataset):
    """The pool is the official train and val; CoOp has the same files one folder higher."""

    facts = DatasetFacts(
        title="FGVCAircraft",
        source=SITE,
        license="for non-commercial research only; photographs belong to their owners",
        n_classes=100,
        n_pool=6667,
        n_test=3333,
        domain="the aircraft {}",
        urls=(ARCHIVE,),
    )
    layouts = (
        Layout("official", ("fgvc-aircraft-2013b/data",), NEEDS, _read),
        Layout("CoOp", ("fgvc_aircraft",), NEEDS, _read),
    )
