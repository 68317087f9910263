"""FGVCAircraft: 100 aircraft variants, official split (Maji et al., 2013)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base

SITE = "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/"
ARCHIVE = base.RemoteFile(
    SITE + "archives/fgvc-aircraft-2013b.tar.gz", "fgvc-aircraft-2013b", "d4acdd33327262359767eeaa97a4f732"
)
LISTS = tuple(f"images_variant_{part}.txt" for part in ("train", "val", "test"))
NEEDS = ("images", "variants.txt", *LISTS)


def _read(folder: Path) -> base.LoadedDataset:
    """Read lines such as `1025794 707-320`; seen classes were drawn from the classes sorted ignoring case."""
    variants = sorted(base.read_lines(folder / "variants.txt"), key=str.casefold)
    train, val, test = (
        base.labeled([(f"{image}.jpg", label) for image, label in base.read_pairs(path)], variants, path)
        for path in (folder / name for name in LISTS)
    )
    return base.from_lists([name.replace("/", "-") for name in variants], folder / "images", train + val, test)


class FGVCAircraft(base.Dataset):
    """The pool is the official train and val; CoOp has the same files one folder higher."""

    facts = base.DatasetFacts(
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
        base.Layout("official", ("fgvc-aircraft-2013b/data",), NEEDS, _read),
        base.Layout("CoOp", ("fgvc_aircraft",), NEEDS, _read),
    )
