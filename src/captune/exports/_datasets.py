"""Data sets of labeled images for training: a folder per split and class, a table of all labels, and a data card."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from captune import __version__
from captune.core.arrays import Ints
from captune.core.errors import InputError
from captune.core.files import is_file, table, write_json, write_whole
from captune.core.text import option
from captune.data.decoding import UnreadableImageError, decode, read_bytes
from captune.exports.base import OF_LABELS, ExportFormat, ExportSettings, LabelTable, choose_labels
from captune.results.run import Run
from captune.results.run_folder import CORRECTIONS
from captune.review.corrections import Corrections
from captune.review.estimate import describe_accuracy

LABELS = "labels.csv"
SIDE = 8
"""Rows and columns of the small picture that tells near duplicates."""
MOST_BITS = 3
MOST_COMPARED = 1000
"""Pictures whose small versions differ in at most so many of their 64 comparisons are near duplicates."""
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"})
"""Files that all libraries read; others are written as PNG."""


class ImageDataset(ExportFormat):
    """Writes SPLIT/CLASS/IMAGE; near duplicates are always in the same split."""

    is_folder = True
    takes = OF_LABELS | {"images", "splits", "link"}
    split_names: ClassVar[Sequence[str]] = ("train", "val", "test")
    usage: ClassVar[str]
    """How the data set is read, for the data card."""

    def write(self, run: Run, target: Path, settings: ExportSettings) -> Sequence[str]:
        """Write the images, the table of labels and the data card."""
        chosen = choose_labels(run, settings)
        shares = _read_shares(settings.splits)
        found = read_images(run, chosen)
        chosen, groups = chosen.subset(found.kept), duplicate_groups(found.codes)
        split = split_groups(groups, chosen.labels, shares)
        sources = label_sources(run, chosen)
        folders = folder_names(chosen.class_names)
        rows = []
        for i, (name, label, confidence) in enumerate(chosen.entries()):
            part = self.split_names[split[i]]
            suffix = Path(name).suffix.lower()
            file = f"{part}/{folders[label]}/{i:06d}{suffix if suffix in SUFFIXES else '.png'}"
            _place(found.files[i], target / file, settings.link)
            rows.append((file, chosen.class_names[label], f"{confidence:.6f}", part, sources[i], name))
        write_whole(target / LABELS, table(("file", "label", "confidence", "split", "source", "path"), rows))
        self.add_files(target, folders)
        counts = Counter(split.tolist())
        told = ", ".join(f"{name} {counts[i]:,}" for i, name in enumerate(self.split_names))
        n_duplicates = int((np.bincount(groups)[groups] > 1).sum())
        write_whole(target / "README.md", self._data_card(run, chosen, settings, rows, told, n_duplicates))
        if chosen.certificate is not None:
            write_json(target / "certificate.json", dict(chosen.certificate))
        return [f"Exported {len(rows):,} of {chosen.n_images:,} images: {told}.", *found.remarks]

    def add_files(self, target: Path, folders: Sequence[str]) -> None:
        """Write what else the format needs."""

    def _data_card(
        self,
        run: Run,
        chosen: LabelTable,
        settings: ExportSettings,
        rows: Sequence[Sequence[str]],
        told: str,
        n_duplicates: int,
    ) -> str:
        by_class, by_source = Counter(row[1] for row in rows), Counter(row[4] for row in rows)
        review = (run.card.get("review") or {}).get("accuracy")
        accuracy = describe_accuracy(review, str(run.folder)) if review else "nobody checked images drawn at random."
        lines = [
            "# Data card",
            "",
            f"{len(rows):,} labeled images of {len(by_class)} classes ({told}), made by captune {__version__}.",
            "",
            f"- Labels by the method {run.method} with {run.settings.get('backbone', '?')}, those with a confidence of "
            f"at least {settings.min_confidence:g}.",
            f"- Accuracy of all predictions of the run: {accuracy}",
            *([] if chosen.certificate is None else [f"- Certificate: {chosen.remark}"]),
            "- Source of the labels: " + ", ".join(f"{source} {n:,}" for source, n in by_source.most_common()) + ".",
            f"- Near duplicates are in the same split: {n_duplicates:,} images resemble another one.",
            f"- `{LABELS}` has the file, label, confidence, split, source and original path of each image.",
            "",
            "| class | images |",
            "|---|---|",
            *(f"| {_cell(name)} | {n:,} |" for name, n in sorted(by_class.items())),
            "",
            "    " + self.usage.replace("\n", "\n    "),
            "",
        ]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Images:
    """The readable images of a data set.

    Attributes:
        kept: Positions of the readable images in the table of labels.
        files: Their paths.
        codes: 64 comparisons of neighboring pixels in a small version of each picture, as bits.
        remarks: What was left out.
    """

    kept: Ints
    files: list[Path]
    codes: NDArray[np.uint64]
    remarks: list[str]


def read_images(run: Run, chosen: LabelTable) -> Images:
    """Read all images once; those that can no longer be read are left out and named."""
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
        pixels = np.asarray(small, dtype=np.int16)
        codes.append(np.packbits(pixels[:, 1:] > pixels[:, :-1]).view(np.uint64)[0])
        kept.append(i)
        files.append(path)
    if not kept:
        raise InputError(f"None of the {len(chosen)} images can be read, the first is {problems[0]}.")
    remarks = [f"Left out {len(problems)} images that cannot be read: {', '.join(problems[:3])}."] if problems else []
    return Images(np.asarray(kept, dtype=np.int64), files, np.asarray(codes, dtype=np.uint64), remarks)


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
        chosen[group] = np.argmax(np.asarray(shares) * (own.sum() + sizes[group]) - own)
        own[chosen[group]] += sizes[group]
    return np.asarray(chosen[inverse], dtype=np.int64)


def label_sources(run: Run, chosen: LabelTable) -> list[str]:
    """Return who gave each label: a person, a person for a whole group, or a prediction."""
    answered: dict[str, str] = {}
    if is_file(run.folder / CORRECTIONS):
        for made in Corrections(run.folder / CORRECTIONS):
            if made.kind == "label":
                answered |= dict.fromkeys(made.images, "group" if len(made.images) > 1 else "person")
    return [answered.get(name, "prediction") for name in chosen.names]


def folder_names(names: Sequence[str]) -> list[str]:
    """Return a folder for each class: no separators or dots at the ends, and unique without regard to case."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w .()+&-]", "_", name).strip(". ")[:80] or "class"
        used, n, own = {one.lower() for one in found}, 2, plain
        while own.lower() in used:
            own, n = f"{plain}_{n}", n + 1
        found.append(own)
    return found


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


def _read_shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != 3 or min(shares) < 0 or sum(shares) <= 0:
        raise InputError(f"splits = {text!r}: expected the shares of training, validation and test, such as 80,10,10.")
    return [share / sum(shares) for share in shares]


def _cell(name: str) -> str:
    return " ".join(name.split()).replace("|", "\\|").replace("<", "&lt;")
