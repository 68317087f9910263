"""Labels of images, from folder names, tables, array files, mappings and arrays; classes that got other names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.arrays import Ints
from captune.core.errors import InputError, nearest, raise_all
from captune.core.files import is_file
from captune.core.text import one_form
from captune.data.images import PATH_COLUMNS, ImageCollection, real_path
from captune.data.precomputed import ArrayFile, is_array_file
from captune.data.tables import first_few, read_columns
from captune.data.vocabulary import Vocabulary

LABEL_COLUMNS = ("label", "class", "class_name", "category", "target")
LABEL_KEYS = ("labels", "label", "y", "targets")
UNREADABLE = "Cannot read these classes"


def read_labels(
    source: Any,  # noqa: ANN401
    images: ImageCollection,
    names: Sequence[str],
    new_names: Mapping[str, str] | None = None,
    left_out: list[str] | None = None,
) -> Ints:
    """Return the class id of every image, -1 for unlabeled ones; labels are class names or class ids.

    Labels may still have the old names of classes in `new_names`. With a list `left_out`, labels that are no classes
    are described there instead of being an error, as long as there are others.
    """
    problems = list[str]()
    pairs: Iterable[tuple[int, Any]]
    path = Path(source) if isinstance(source, (str, os.PathLike)) else None
    if path == Path("folders"):
        pairs = ((i, place.parent.name) for i, place in enumerate(images.paths))
    elif path is not None and is_array_file(path):
        pairs = _aligned(ArrayFile(path).choose(LABEL_KEYS, "labels", n_axes=1), images)
    elif path is not None:
        if not is_file(path):
            raise InputError(f"No labels at {str(path)!r}: expected 'folders' or a CSV/Parquet table (path, label).")
        rows = ((entry.strip(), label.strip()) for entry, label in read_columns(path, [PATH_COLUMNS, LABEL_COLUMNS]))
        what = f"paths in {str(path)!r}, relative to its folder or {str(images.root)!r}, that are not among the images"
        pairs = _located(rows, path.parent, images, problems, what)
    elif isinstance(source, Mapping) or (
        hasattr(source, "items") and getattr(getattr(source.index, "dtype", None), "kind", "i") not in "iu"
    ):  # a pandas Series with names of images is like a mapping
        what = "keys that are neither the name nor the position of an image"
        pairs = _located(source.items(), Path(), images, problems, what)
    else:
        pairs = _aligned(source, images)
    class_ids: dict[Any, int] = {i: i for i in range(len(names))} | {one_form(name): i for i, name in enumerate(names)}
    former = {one_form(old): one_form(new) for old, new in (new_names or {}).items()}
    class_ids |= {old: class_ids[new] for old, new in former.items() if new in class_ids}
    labels = np.full(len(images), -1, dtype=np.int64)
    unknown: Counter[str | int] = Counter()
    for position, given in pairs:
        label = _tidy_label(given, class_ids)
        class_id = class_ids.get(label)
        if label is None:
            continue
        if class_id is None:
            unknown[label] += 1
        elif labels[position] not in (-1, class_id):
            problems.append(
                f"{images.name(position)!r} is labeled both {names[labels[position]]!r} and {names[class_id]!r}"
            )
        else:
            labels[position] = class_id
    counts = sorted(unknown.items(), key=lambda entry: str(entry[0]))
    not_classes = first_few(f"{name!r} is not a class (images: {n}).{nearest(str(name), names)}" for name, n in counts)
    if left_out is not None and (labels >= 0).any():
        left_out += not_classes
        not_classes = []
    raise_all([*first_few(problems), *not_classes], f"Cannot use these labels (classes: {', '.join(first_few(names))})")
    return labels


def _tidy_label(label: Any, class_ids: Mapping[Any, int]) -> str | int | None:  # noqa: ANN401
    """Return a class name or id; None, NaN, -1 and empty text mean that there is no label."""
    if hasattr(label, "item") and not isinstance(label, str):
        label = label.item()  # a scalar of NumPy or PyTorch
    if label is None or label != label or type(label).__name__ == "NAType":  # noqa: PLR0124 (NaN differs from itself)
        return None
    if isinstance(label, str):
        return one_form(label) or None
    if isinstance(label, float) and label.is_integer():  # a column with missing values has floats
        label = int(label)
    if isinstance(label, int) and not isinstance(label, bool):
        return None if label == -1 else str(label) if str(label) in class_ids else label
    return str(label)


def _aligned(source: Any, images: ImageCollection) -> Iterator[tuple[int, Any]]:  # noqa: ANN401
    """Yield the position and the label of every image."""
    if hasattr(source, "detach"):
        source = source.detach().cpu().numpy()
    try:
        labels = source.tolist() if hasattr(source, "tolist") else list(source)
        n_labels = len(labels)
    except TypeError:
        found = f"got {type(source).__name__}"
        raise InputError(f"Expected labels as 'folders', a path, a mapping or one per image, {found}.") from None
    if n_labels != len(images):
        raise InputError(
            f"Expected {len(images)} labels, one per image, got {n_labels}. Use None for images without a label, or a "
            "mapping from image names to labels."
        )
    return enumerate(labels)


def _located(
    entries: Iterable[tuple[Any, Any]], folder: Path, images: ImageCollection, problems: list[str], what: str
) -> Iterator[tuple[int, Any]]:
    """Yield the positions and labels of entries, which are positions or paths relative to a folder or the root.

    Entries that are not found are one problem.
    """
    real, unknown, positions = real_path(), [], dict[str, int]()
    for entry, label in entries:
        found = -1
        if isinstance(entry, (int, np.integer)) and 0 <= entry < len(images):
            found = int(entry)
        elif isinstance(entry, (str, os.PathLike)):
            if not positions:
                positions = {real(images.files[i]): i for i in reversed(range(len(images)))}
            beside = positions.get(real(folder / entry))
            found = positions.get(real(images.root / entry), -1) if beside is None else beside
        if found >= 0:
            yield found, label
        else:
            unknown.append(entry)
    if unknown:
        problems.append(f"{what}: {len(unknown)}, the first is {unknown[0]!r}")


def parse_renames(arguments: Sequence[str]) -> dict[str, str]:
    """Parse `old=new` arguments, and tables with the columns old and new; equal new names are merged."""
    pairs = list[tuple[str, ...]]()
    for argument in arguments:
        is_table = "=" not in argument and is_file(argument)
        pairs += read_columns(Path(argument), [("old",), ("new",)]) if is_table else [argument.partition("=")[::2]]
    return _as_mapping(pairs, "--rename", "old=new")


def by_new_name(renames: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the old names of each new one."""
    return {new: [old for old in renames if renames[old] == new] for new in dict.fromkeys(renames.values())}


def parse_merges(arguments: Iterable[str]) -> dict[str, list[str]]:
    """Parse `new=a,b` arguments."""
    found = _as_mapping([argument.partition("=")[::2] for argument in arguments], "--merge", "new=a,b")
    listed = {new: [name.strip() for name in names.split(",")] for new, names in found.items()}
    raise_all((f"--merge {new!r} has an empty name" for new in listed if not all(listed[new])), UNREADABLE)
    return listed


def new_names(rename: Mapping[str, str], merge: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the new name of each old one, for labels that still have the old ones."""
    mapping: dict[str, str] = {}
    clashes = []
    for old, new in [*rename.items(), *((old, new) for new, names in merge.items() for old in names)]:
        if mapping.get(old, new) != new:
            clashes.append(f"{old!r} would become both {mapping[old]!r} and {new!r}")
        mapping[old] = new
    raise_all(clashes, "Contradictory names of classes")
    return {old: new for old, new in mapping.items() if old != new}


def rename_classes(
    vocabulary: Vocabulary, rename: Mapping[str, str], merge: Mapping[str, Sequence[str]], embedded: bool = False
) -> Vocabulary:
    """Return the vocabulary with renamed and merged classes.

    A merged class is represented by the texts of all its former names. So is a renamed one if texts are `embedded`
    already, because nothing can embed its new name. New names that are classes already take the others in.
    """
    mapping = new_names(rename, merge)
    known = {*vocabulary.names, *(old for old, new in mapping.items() if new in vocabulary.names)}
    wrong = [f"{old!r} is not a class.{nearest(old, vocabulary.names)}" for old in mapping if old not in known]
    raise_all(wrong, "Cannot rename or merge these classes")
    names = tuple(dict.fromkeys(mapping.get(name, name) for name in vocabulary.names))
    former: dict[str, list[int]] = {name: [] for name in names}
    for class_id, name in enumerate(vocabulary.names):
        former[mapping.get(name, name)].append(class_id)
    descriptions: dict[int, tuple[str, ...]] = {}
    for class_id, name in enumerate(names):
        ids = former[name]
        is_new = [vocabulary.names[i] for i in ids] != [name]
        if any(i in vocabulary.descriptions for i in ids) or (is_new and (embedded or len(ids) > 1)):
            descriptions[class_id] = tuple(dict.fromkeys(text for i in ids for text in vocabulary.texts(i)))
    return Vocabulary(names, vocabulary.templates, descriptions)


def _as_mapping(pairs: Iterable[tuple[str, ...]], flag: str, form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    problems = []
    for pair in pairs:
        left, right = (part.strip() for part in pair)
        if not left or not right:
            problems.append(f"{flag} {left!r}, {right!r} is not of the form {form}")
        elif left in found:
            problems.append(f"{flag} {left!r} is repeated")
        found[left] = right
    raise_all(problems, UNREADABLE)
    return found
