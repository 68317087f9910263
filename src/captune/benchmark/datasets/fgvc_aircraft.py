"""FGVCAircraft: 100 aircraft variants, official split (Maji et al., 2013)."""

from __future__ import annotations

from pathlib import Path

from captune.benchmark.datasets import base

LISTS = tuple(f"images_variant_{part}.txt" for part in ("train", "val", "test"))


def _read(folder: Path) -> base.LoadedDataset:
    """Read lines such as `1025794 707-320`; seen classes were drawn from the classes sorted ignoring case."""
    variants = sorted(base.read_lines(folder / "variants.txt"), key=str.casefold)
    train, val, test = (
        [(f"{image}.jpg", variants.index(variant)) for image, variant in base.read_pairs(folder / name)]
        for name in LISTS
    )
    return base.from_lists([name.replace("/", "-") for name in variants], folder / "images", train + val, test)


class FGVCAircraft(base.Dataset):
    """The pool is the official train and val; CoOp has the same files one folder higher."""

    facts = base.FACTS["fgvc_aircraft"]
    layouts = (base.Layout(("images", "variants.txt", *LISTS), _read),)
