"""Building blocks of dataset readers: class folders, text lists, CoOp's split files and seeded splits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from captune.benchmark.datasets.base import LoadedDataset
from captune.core.arrays import Ints
from captune.core.cards import read_json
from captune.core.errors import InputError
from captune.core.files import is_file, is_folder
from captune.data.images import ImageCollection, find_images

Listed = tuple[list[str], list[int]]
"""Paths relative to a folder, and their class ids."""
SEEDED_REMARK = (
    "The split was drawn at random with the published sizes and a fixed seed, because ELEVATER's index files ({files}) "
    "are missing: results differ slightly from published ones."
)


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the sub-folders that are not hidden."""
    if not is_folder(folder):
        return ()
    return tuple(sorted(child.name for child in folder.iterdir() if child.is_dir() and child.name[0] != "."))


def spaced(names: Sequence[str]) -> tuple[str, ...]:
    """Return folder names as class names, with spaces instead of underscores."""
    return tuple(name.replace("_", " ") for name in names)


def read_folders(folder: Path, classes: tuple[str, ...], may_be_empty: bool = False) -> tuple[ImageCollection, Ints]:
    """Return the images in the folders of these classes, sorted by class and name, and their class ids."""
    parts = [find_images(folder / name).paths if is_folder(folder / name) else () for name in classes]
    empty = [name for name, paths in zip(classes, parts, strict=True) if not paths]
    if empty and not may_be_empty:
        raise InputError(f"No images in {str(folder / empty[0])!r}: every class needs at least one.")
    labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in parts])
    return ImageCollection(tuple(path for paths in parts for path in paths), folder), labels.astype(np.int64)


def read_train_and_test(folder: Path) -> LoadedDataset:
    """Return the dataset of a folder with train/<class>/ and test/<class>/."""
    names = class_folders(folder / "train")
    return LoadedDataset(names, *read_folders(folder / "train", names), *read_folders(folder / "test", names))


def read_lines(path: Path) -> list[str]:
    """Return the non-empty lines of a text file."""
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The list {str(path)!r} cannot be read as text: {error}.") from error


def read_pairs(path: Path, n_lines: int | None = None) -> list[tuple[str, str]]:
    """Return the first word of every line and the rest of the line."""
    pairs = [(first, rest.strip()) for first, _, rest in (line.partition(" ") for line in read_lines(path))]
    wrong = next((first for first, rest in pairs if not rest), None)
    if wrong is not None:
        raise InputError(f"The list {str(path)!r} has a line with only one word, {wrong!r}, expected two.")
    if n_lines is not None and len(pairs) != n_lines:
        raise InputError(f"The list {str(path)!r} has {len(pairs)} lines, expected {n_lines}, one per image.")
    return pairs


def read_coop(path: Path) -> tuple[Listed, Listed]:
    """Return pool (train and val) and test of a split_zhou file: lists of [path, class id, class name]."""
    try:
        content = read_json(path)
        parts = {part: [(str(entry[0]), int(entry[1])) for entry in content[part]] for part in ("train", "val", "test")}
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise InputError(
            f"{str(path)!r} is not a CoOp split file with train, val and test lists of [path, class id, name]: "
            f"{type(error).__name__}: {error}."
        ) from error
    pool, test = parts["train"] + parts["val"], parts["test"]
    return ([name for name, _ in pool], [c for _, c in pool]), ([name for name, _ in test], [c for _, c in test])


def class_id(name: str, classes: Sequence[str], source: Path) -> int:
    """Return the position of a class, or name the file that lists an unknown one."""
    if name not in classes:
        raise InputError(f"{str(source)!r} lists the class {name!r}, which is not one of the {len(classes)} classes.")
    return classes.index(name)


def label_by_folder(entries: list[str], classes: Sequence[str], source: Path) -> Listed:
    """Return `<class>/<file>` entries with the class ids of their folders."""
    return entries, [class_id(entry.split("/")[0], classes, source) for entry in entries]


def from_lists(
    names: Sequence[str], folder: Path, pool: Listed, test: Listed, source: Path, test_source: Path | None = None
) -> LoadedDataset:
    """Return the dataset of two lists of images; all must exist inside the folder."""
    return LoadedDataset(tuple(names), *_collect(folder, pool, source), *_collect(folder, test, test_source or source))


def _collect(folder: Path, listed: Listed, source: Path) -> tuple[ImageCollection, Ints]:
    names, labels = listed
    outside = [name for name in names if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
    if outside:
        raise InputError(f"{str(source)!r} lists {outside[0]!r}, which is outside {str(folder)!r}.")
    paths = tuple(folder / name for name in names)
    missing = [path for path in paths if not is_file(path)]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(paths)} images listed in {str(source)!r} are missing, first {str(missing[0])!r}. "
            "Unpack the whole archive again."
        )
    return ImageCollection(paths, folder), np.asarray(labels, dtype=np.int64)


def from_positions(
    names: Sequence[str], images: ImageCollection, labels: Ints, test: Ints, remarks: tuple[str, ...] = ()
) -> LoadedDataset:
    """Return the dataset whose test images are at these positions and whose pool is the rest."""
    pool = np.setdiff1d(np.arange(len(images)), test)
    return LoadedDataset(tuple(names), images.subset(pool), labels[pool], images.subset(test), labels[test], remarks)


def draw_by_class(labels: Ints, n_drawn: int) -> Ints:
    """Return sorted positions of a stratified random sample of exactly this size.

    Rounding leftovers go to the classes with the largest remainders, the first of equal ones.
    """
    sizes = np.bincount(labels)
    quotas = sizes * (n_drawn / len(labels))
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    order = np.argsort(-(quotas - counts), kind="stable")
    counts[order[: n_drawn - int(counts.sum())]] += 1
    drawn = [
        np.random.RandomState([0, c]).permutation(np.flatnonzero(labels == c))[: counts[c]] for c in range(len(sizes))
    ]
    return np.sort(np.concatenate(drawn)).astype(np.int64)
