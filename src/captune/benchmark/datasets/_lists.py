"""Lists of images that come with datasets: text files, CoOp's split_zhou files, and splits by a seeded rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from captune.core.arrays import Ints
from captune.core.errors import InputError
from captune.core.files import is_file
from captune.data.images import ImageCollection

Listed = tuple[list[str], list[int]]
"""Paths below a folder and their class ids."""


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not empty."""
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The list {str(path)!r} cannot be read as text: {error}.") from error


def read_pairs(path: Path, n_lines: int | None = None) -> list[tuple[str, str]]:
    """Return the first word of every line and the rest of it."""
    pairs = [(first, rest.strip()) for first, _, rest in (line.partition(" ") for line in read_lines(path))]
    wrong = next((first for first, rest in pairs if not rest), None)
    if wrong is not None:
        raise InputError(f"The list {str(path)!r} has a line with one word, {wrong!r}, expected two.")
    if n_lines is not None and len(pairs) != n_lines:
        raise InputError(f"The list {str(path)!r} has {len(pairs)} lines, expected {n_lines}, one an image.")
    return pairs


def collect(folder: Path, listed: Listed, source: Path) -> tuple[ImageCollection, Ints]:
    """Return listed images below a folder with their labels; one that is missing or leads outside is an error."""
    names, labels = listed
    outside = [name for name in names if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
    if outside:
        raise InputError(f"{str(source)!r} names {outside[0]!r}, which leads outside {str(folder)!r}.")
    paths = tuple(folder / name for name in names)
    missing = [path for path in paths if not is_file(path)]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(paths)} images that {str(source)!r} names are missing, first {str(missing[0])!r}. "
            "Unpack the whole archive again."
        )
    return ImageCollection(paths, folder), np.asarray(labels, dtype=np.int64)


def class_id(name: str, ids: dict[str, int], source: Path) -> int:
    """Return the id of a class, or say which file names one that is not known."""
    if name not in ids:
        raise InputError(f"{str(source)!r} names the class {name!r}, which is not one of the {len(ids)} classes.")
    return ids[name]


def read_zhou(path: Path) -> tuple[Listed, Listed]:
    """Return pool (train and val) and test of a split_zhou file: lists of [path, class id, class name]."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        parts = {part: [(str(entry[0]), int(entry[1])) for entry in content[part]] for part in ("train", "val", "test")}
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise InputError(
            f"{str(path)!r} is no split file of CoOp, which holds train, val and test lists of [path, class id, name]: "
            f"{type(error).__name__}: {error}."
        ) from error
    pool, test = parts["train"] + parts["val"], parts["test"]
    return ([name for name, _ in pool], [c for _, c in pool]), ([name for name, _ in test], [c for _, c in test])


def draw_by_class(labels: Ints, n_drawn: int, seed: int = 0) -> Ints:
    """Return sorted positions of a seeded sample in which every class has its share, exact in total.

    Places that are left after rounding down go to the classes with the largest remainders, the first of equal ones.
    """
    sizes = np.bincount(labels)
    quotas = sizes * (n_drawn / len(labels))
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    order = np.argsort(-(quotas - counts), kind="stable")
    counts[order[: n_drawn - int(counts.sum())]] += 1
    drawn: Sequence[Ints] = [
        np.random.RandomState([seed, c]).permutation(np.flatnonzero(labels == c))[: counts[c]]
        for c in range(len(sizes))
    ]
    return np.sort(np.concatenate(drawn)).astype(np.int64)


SEEDED_REMARK = (
    "The split is drawn by a seeded rule with the published sizes, because the index files of ELEVATER ({files}) "
    "are not there: results differ a little from published ones."
)
