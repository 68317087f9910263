"""Labels of images, from folder names, tables, array files, mappings and arrays."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from captune.core.arrays import Ints
from captune.core.errors import InputError, raise_all
from captune.core.files import is_file
from captune.core.text import one_form
from captune.data.images import PATH_COLUMNS, ImageCollection, real_path
from captune.data.keys import KeyList, Keys, KeySet
from captune.data.paths import tidy
from captune.data.precomputed import is_array_file, read_array
from captune.data.tables import Problems, first_few, read_columns

LABEL_COLUMNS = ("label", "class", "class_name", "category", "target")
ROWS_AT_ONCE = 8192


def read_labels(
    source: Any,  # noqa: ANN401
    images: ImageCollection,
    names: Sequence[str],
    new_names: Mapping[str, str] | None = None,
) -> Ints:
    """Return the class id of every image, -1 for unlabeled ones; labels are class names or class ids.

    Labels may still have the old names of classes in `new_names`.
    """
    problems = Problems()
    if isinstance(source, (str, os.PathLike)):
        pairs = _stored_labels(Path(source), images, problems)
    elif isinstance(source, Mapping):
        pairs = _mapped_labels(source, images, problems)
    elif _has_named_index(source):  # a pandas Series whose index has the names of the images
        pairs = _mapped_labels(dict(source.items()), images, problems)
    else:
        pairs = _aligned_labels(source, images)
    class_ids: dict[Any, int] = {i: i for i in range(len(names))} | {one_form(name): i for i, name in enumerate(names)}
    class_ids |= {
        one_form(old): class_ids[one_form(new)] for old, new in (new_names or {}).items() if one_form(new) in class_ids
    }
    labels = np.full(len(images), -1, dtype=np.int64)
    unknown: Counter[str] = Counter()
    for position, given in pairs:
        label = _tidy_label(given, class_ids)
        class_id = class_ids.get(label)
        if label is None:
            continue
        if class_id is None:
            unknown[repr(label)] += 1
        elif labels[position] not in (-1, class_id):
            problems.add(
                f"{images.name(position)!r} is labeled both {names[labels[position]]!r} and {names[class_id]!r}"
            )
        else:
            labels[position] = class_id
    not_classes = first_few(f"{name} is not a class (images: {count})" for name, count in sorted(unknown.items()))
    raise_all([*problems.listed(), *not_classes], f"Cannot use these labels (classes: {', '.join(first_few(names))})")
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


def _stored_labels(path: Path, images: ImageCollection, problems: Problems) -> Iterable[tuple[int, Any]]:
    if str(path) == "folders":
        return ((i, place.parent.name) for i, place in enumerate(images.paths))
    if is_array_file(path):
        return _aligned_labels(read_array(path, ("labels", "label", "y", "targets"), "labels", n_axes=1), images)
    return _table_labels(path, images, problems)


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


def _has_named_index(source: Any) -> bool:  # noqa: ANN401
    return hasattr(source, "items") and getattr(getattr(source.index, "dtype", None), "kind", "i") not in "iu"


def _mapped_labels(source: Mapping[Any, Any], images: ImageCollection, problems: Problems) -> Iterator[tuple[int, Any]]:
    real = real_path()
    is_name = [isinstance(key, (str, os.PathLike)) for key in source]
    positions = KeySet(_keys(map(real, images.paths))) if any(is_name) else None
    first, n_unknown = "", 0
    for key, label in source.items():
        position = -1
        if isinstance(key, (int, np.integer)):
            position = int(key) if 0 <= key < len(images) else -1
        elif isinstance(key, (str, os.PathLike)) and positions is not None:
            entry = tidy(os.fspath(key))
            found = positions.find(_keys([real(Path(entry)), real(images.root / entry)]))
            position = int(found.max())
        if position >= 0:
            yield position, label
        else:
            first, n_unknown = first or repr(key), n_unknown + 1
    if n_unknown:
        problems.add(f"keys that are neither the name nor the position of an image: {n_unknown}, the first is {first}")


def _table_labels(path: Path, images: ImageCollection, problems: Problems) -> Iterator[tuple[int, str]]:
    if not is_file(path):
        raise InputError(f"No labels at {str(path)!r}: expected 'folders' or a CSV/Parquet table (path, label).")
    real = real_path()
    positions, rows = KeySet(_keys(map(real, images.paths))), read_columns(path, [PATH_COLUMNS, LABEL_COLUMNS])
    first, n_unknown = "", 0
    while chunk := list(islice(rows, ROWS_AT_ONCE)):
        beside, below = (
            positions.find(_keys(real(folder / entry.strip()) for entry, _ in chunk))
            for folder in (path.parent, images.root)
        )
        for position, (entry, label) in zip(np.where(beside >= 0, beside, below).tolist(), chunk, strict=True):
            if position >= 0:
                yield position, label.strip()
            else:
                first, n_unknown = first or entry, n_unknown + 1
    if n_unknown:
        problems.add(
            f"paths in {str(path)!r} that are not among the images: {n_unknown}, the first is {first!r}; paths are "
            f"relative to the table's folder or {str(images.root)!r}"
        )


def _keys(texts: Iterable[str]) -> Keys:
    keys = KeyList()
    for text in texts:
        keys.add(text)
    return keys.keys()
