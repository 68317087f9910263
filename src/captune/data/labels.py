"""Labels of images, from folder names, tables, array files, mappings and arrays; classes that got other names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.arrays import Ints
from captune.core.errors import InputError, nearest, raise_all
from captune.core.files import is_file
from captune.core.text import one_form
from captune.data.images import PATH_COLUMNS, ImageCollection, real_path, tidy
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
        pairs = _aligned_labels(ArrayFile(path).choose(LABEL_KEYS, "labels", n_axes=1), images)
    elif path is not None:
        pairs = _table_labels(path, images, problems)
    elif isinstance(source, Mapping):
        pairs = _mapped_labels(source, images, problems)
    elif hasattr(source, "items") and getattr(getattr(source.index, "dtype", None), "kind", "i") not in "iu":
        pairs = _mapped_labels(dict(source.items()), images, problems)  # a pandas Series with names of images
    else:
        pairs = _aligned_labels(source, images)
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
    not_classes = first_few(
        f"{label!r} is not a class (images: {count}).{nearest(str(label), names)}"
        for label, count in sorted(unknown.items(), key=lambda entry: str(entry[0]))
    )
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


def _aligned_labels(source: Any, images: ImageCollection) -> Iterator[tuple[int, Any]]:  # noqa: ANN401
    if hasattr(source, "detach"):
        source = source.detach().cpu().numpy()
    try:
        labels = source.tolist() if hasattr(source, "tolist") else list(source)
    except TypeError:
        raise InputError(
            f"Expected labels as 'folders', a path, a mapping or one label per image, got {type(source).__name__}."
        ) from None
    if not isinstance(labels, list) or len(labels) != len(images):
        found = len(labels) if isinstance(labels, list) else 1
        raise InputError(
            f"Expected {len(images)} labels, one per image, got {found}. Use None for images without a label, or a "
            "mapping from image names to labels."
        )
    return enumerate(labels)


def _mapped_labels(
    source: Mapping[Any, Any], images: ImageCollection, problems: list[str]
) -> Iterator[tuple[int, Any]]:
    find = _finder(images) if any(isinstance(key, (str, os.PathLike)) for key in source) else None

    def position_of(key: Any) -> int:  # noqa: ANN401
        if isinstance(key, (int, np.integer)):
            return int(key) if 0 <= key < len(images) else -1
        return find(Path(), tidy(os.fspath(key))) if isinstance(key, (str, os.PathLike)) and find is not None else -1

    located = ((key, position_of(key), label) for key, label in source.items())
    return _known(located, problems, "keys that are neither the name nor the position of an image")


def _table_labels(path: Path, images: ImageCollection, problems: list[str]) -> Iterator[tuple[int, str]]:
    if not is_file(path):
        raise InputError(f"No labels at {str(path)!r}: expected 'folders' or a CSV/Parquet table (path, label).")
    rows, find = read_columns(path, [PATH_COLUMNS, LABEL_COLUMNS]), _finder(images)
    located = ((entry, find(path.parent, entry.strip()), label.strip()) for entry, label in rows)
    hint = f"; paths are relative to the table's folder or {str(images.root)!r}"
    return _known(located, problems, f"paths in {str(path)!r} that are not among the images", hint)


def _known(
    located: Iterable[tuple[Any, int, Any]], problems: list[str], what: str, hint: str = ""
) -> Iterator[tuple[int, Any]]:
    """Yield positions and labels of the entries that were found, and describe the others as one problem."""
    unknown = []
    for entry, position, label in located:
        if position >= 0:
            yield position, label
        else:
            unknown.append(entry)
    if unknown:
        problems.append(f"{what}: {len(unknown)}, the first is {unknown[0]!r}{hint}")


def _finder(images: ImageCollection) -> Callable[[Path, str], int]:
    """Return a function that finds the position of a path that is relative to a folder or the root, -1 without one."""
    real = real_path()
    positions = dict[str, int]()
    for position, file in enumerate(images.files):
        positions.setdefault(real(file), position)

    def find(folder: Path, entry: str) -> int:
        beside = positions.get(real(folder / entry))
        return positions.get(real(images.root / entry), -1) if beside is None else beside

    return find


def parse_renames(arguments: Sequence[str]) -> dict[str, str]:
    """Parse `old=new` arguments, and tables with the columns old and new; equal new names are merged."""
    tables = [argument for argument in arguments if "=" not in argument and is_file(argument)]
    rows = [row for table in tables for row in read_columns(Path(table), [("old",), ("new",)])]
    return _pairs((argument for argument in arguments if argument not in tables), rows, "--rename", "old=new")


def by_new_name(renames: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the old names of each new one."""
    return {new: [old for old in renames if renames[old] == new] for new in dict.fromkeys(renames.values())}


def parse_merges(arguments: Iterable[str]) -> dict[str, list[str]]:
    """Parse `new=a,b` arguments."""
    found = _pairs(arguments, (), "--merge", "new=a,b")
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


def _pairs(arguments: Iterable[str], rows: Iterable[tuple[str, ...]], flag: str, form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    problems = []
    for pair in (*(argument.partition("=")[::2] for argument in arguments), *rows):
        left, right = (part.strip() for part in pair)
        if not left or not right:
            problems.append(f"{flag} {left!r}, {right!r} is not of the form {form}")
        elif left in found:
            problems.append(f"{flag} {left!r} is repeated")
        found[left] = right
    raise_all(problems, UNREADABLE)
    return found
