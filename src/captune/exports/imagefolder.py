"""Images in a folder per split and class, as torchvision, timm, Ultralytics and datasets read them, and a data card."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Ints
from captune.core.errors import InputError
from captune.core.files import table, write_json, write_whole
from captune.core.text import option
from captune.data.decoding import UnreadableImageError, decode, read_bytes
from captune.exports.base import OF_LABELS, ExportFormat, ExportSettings, LabelTable, choose_labels
from captune.report.card import data_card
from captune.results.run import Run
from captune.results.run_folder import CORRECTIONS
from captune.review.corrections import Corrections

LABELS = "labels.csv"
SPLITS = ("train", "val", "test")
USAGE = """torchvision.datasets.ImageFolder("FOLDER/train")
python train.py FOLDER --class-map FOLDER/class_map.txt  # timm, with the class ids of the run
yolo classify train data=FOLDER model=yolo11n-cls.pt
datasets.load_dataset("imagefolder", data_dir="FOLDER")"""
SIDE = 8
"""Rows and columns of the small picture that tells near duplicates."""
MOST_BITS = 3
MOST_COMPARED = 1000
"""Pictures whose small versions differ in at most so many of their 64 comparisons are near duplicates."""
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"})
"""Files that all libraries read; others are written as PNG."""


class ImageFolder(ExportFormat):
    """Writes SPLIT/CLASS/IMAGE; near duplicates are always in the same split."""

    target = "imagefolder"
    is_folder = True
    takes = OF_LABELS | {"images", "splits", "link"}

    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the images, the table of labels, a class map for timm and the data card."""
        chosen = choose_labels(run, settings)
        try:
            shares = [float(part) for part in settings.splits.split(",")]
        except ValueError:
            shares = []
        if len(shares) != len(SPLITS) or min(shares) < 0 or sum(shares) <= 0:
            expected = "expected the shares of training, validation and test, such as 80,10,10"
            raise InputError(f"splits = {settings.splits!r}: {expected}.")
        chosen, files, codes, remarks = read_images(run, chosen)
        groups = duplicate_groups(codes)
        split = split_groups(groups, chosen.labels, shares)
        sources = label_sources(run, chosen)
        folders = folder_names(chosen.run.names)
        rows = []
        for i, (name, label, confidence) in enumerate(chosen.entries()):
            part, suffix = SPLITS[split[i]], Path(name).suffix.lower()
            file = f"{part}/{folders[label]}/{i:06d}{suffix if suffix in SUFFIXES else '.png'}"
            _place(files[i], target / file, settings.link)
            rows.append((file, chosen.run.names[label], f"{confidence:.6f}", part, sources[i], name))
        write_whole(target / LABELS, table(("file", "label", "confidence", "split", "source", "path"), rows))
        write_whole(target / "class_map.txt", "".join(f"{folder}\n" for folder in folders))
        told = ", ".join(f"{name} {(split == i).sum():,}" for i, name in enumerate(SPLITS))
        by_class, by_source = Counter(row[1] for row in rows), Counter(sources).most_common()
        facts = [
            f"Labels with a confidence of at least {settings.min_confidence:g}.",
            f"Source of the labels: {', '.join(f'{source} {n:,}' for source, n in by_source)}",
            f"Near duplicates are in the same split: {(np.bincount(groups)[groups] > 1).sum():,} images resemble "
            "another one.",
            f"`{LABELS}` has the file, label, confidence, split, source and original path of each image.",
        ]
        certificate = "" if chosen.certificate is None else chosen.remark
        told_all = f"{len(rows):,} labeled images of {len(by_class)} classes ({told})"
        write_whole(target / "README.md", data_card(run, told_all, facts, by_class, certificate, USAGE))
        if chosen.certificate is not None:
            write_json(target / "certificate.json", dict(chosen.certificate))
        return [f"Exported {len(rows):,} of {len(run.readable):,} images: {told}.", *remarks]


def read_images(run: Run, chosen: LabelTable) -> tuple[LabelTable, list[Path], NDArray[np.uint64], list[str]]:
    """Return the labels of readable images, their files, 64 comparisons of neighboring pixels, and what is left out."""
    kept, files, codes, problems = [], [], [], []
    for i, row in enumerate(chosen.rows.tolist()):
        path = run.shown_file(row)
        if path is None:
            raise InputError(
                f"You did not make the run {str(run.folder)!r} in this place, so images from the folder that it names "
                f"are not copied. If that folder is the right one, pass {option('images')}: "
                f"{run.card.get('image_root', '?')}"
            )
        try:
            small = decode(read_bytes(path), smallest=4 * SIDE).convert("L").resize((SIDE + 1, SIDE))
        except UnreadableImageError as error:
            problems.append(f"{chosen.names[i]} ({error})")
            continue
        codes.append(np.packbits(np.diff(np.asarray(small, dtype=np.int16)) > 0).view(np.uint64)[0])
        kept.append(i)
        files.append(path)
    if not kept:
        raise InputError(f"None of the {len(chosen)} images can be read, the first is {problems[0]}.")
    remarks = [f"Left out {len(problems)} images that cannot be read: {', '.join(problems[:3])}."] if problems else []
    return chosen.subset(np.asarray(kept)), files, np.asarray(codes, dtype=np.uint64), remarks


def duplicate_groups(codes: NDArray[np.uint64]) -> Ints:
    """Return the group of each image; pictures whose codes differ in a few bits are in one group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    distinct, inverse = np.unique(codes, return_inverse=True)
    pairs = [np.empty((0, 2), dtype=np.int64)]
    parts = distinct.view(np.uint16).reshape(len(distinct), 4)
    for key in parts.T:  # if three bits differ, at least one of four parts is equal
        order = np.argsort(key, kind="stable")
        for bucket in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            near = bucket[:MOST_COMPARED]
            different = (distinct[near][:, None] ^ distinct[near][None])[..., None].view(np.uint8)
            pairs.append(near[np.argwhere(np.unpackbits(different, axis=-1).sum(axis=-1) <= MOST_BITS)])
    first, second = np.concatenate(pairs).T
    graph = coo_array((np.ones(len(first), dtype=np.bool_), (first, second)), shape=(len(distinct), len(distinct)))
    return np.asarray(connected_components(graph, directed=False)[1][inverse], dtype=np.int64)


def split_groups(groups: Ints, labels: Ints, shares: Sequence[float]) -> Ints:
    """Return the split of each image: whole groups, in each class as close to the shares as groups allow."""
    _, first, inverse, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    placed = np.zeros((int(labels.max()) + 1, len(shares)))
    chosen = np.zeros(len(first), dtype=np.int64)
    for group in np.random.default_rng(0).permutation(len(first)).tolist():  # the same order every time
        own = placed[labels[first[group]]]
        # The split that is furthest behind gets the next group.
        chosen[group] = np.argmax(np.asarray(shares) / sum(shares) * (own.sum() + sizes[group]) - own)
        own[chosen[group]] += sizes[group]
    return np.asarray(chosen[inverse], dtype=np.int64)


def label_sources(run: Run, chosen: LabelTable) -> list[str]:
    """Return who gave each label: a person, a person for a whole group, or a prediction."""
    answered: dict[str, str] = {}
    for made in Corrections(run.folder / CORRECTIONS):
        if made.kind == "label":
            answered |= dict.fromkeys(made.images, "group" if len(made.images) > 1 else "person")
    return [answered.get(name, "prediction") for name in chosen.names]


def folder_names(names: Sequence[str]) -> list[str]:
    """Return a folder for each class: no separators or dots at the ends, and unique without regard to case."""
    found: dict[str, str] = {}
    for name in names:
        own = plain = re.sub(r"[^\w .()+&-]", "_", name).strip(". ")[:80] or "class"
        for number in range(2, len(names) + 2):
            if own.lower() not in found:
                break
            own = f"{plain}_{number}"
        found[own.lower()] = own
    return list(found.values())


def _place(source: Path, target: Path, link: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix.lower() not in SUFFIXES:
        decode(read_bytes(source)).save(target)
    elif link and source.is_file():
        target.symlink_to(source.absolute())
    elif source.is_file():
        shutil.copyfile(source, target)
    else:
        target.write_bytes(read_bytes(source))  # a member of a tar shard
