"""Everything that `adapt` and `predict` take as images, turned into an image collection."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from PIL import Image

from captune.core.arrays import evenly_spaced
from captune.core.errors import InputError, nearest
from captune.core.files import is_file
from captune.data.decoding import ImageData, UnreadableImageError, as_image, is_image_array, read_bytes
from captune.data.images import PATH_COLUMNS, ImageCollection, find_images, from_paths, no_usable_image
from captune.data.partition_folder import is_partition_folder
from captune.data.precomputed import Embeddings, check_names, is_array_file
from captune.data.shards import SUFFIXES

Images: TypeAlias = "str | os.PathLike[str] | ImageCollection | Iterable[Any] | Any"
"""A path; a sequence of paths, Pillow images or arrays; an array; a dataset; a table; or `Embeddings`."""
EXPECTED = (
    "Expected a path, a sequence of paths, Pillow images or arrays, an array (images, height, width, 3), a map-style "
    "dataset (one split), a table with a path or image column, or captune.Embeddings"
)

IMAGE_KEYS = ("image", "img", "images", "photo", "picture", "pixels", "pixel_values", "jpg", "png")
"""Columns and dictionary keys that usually contain the image."""
MOST_READ = 64
"""Images whose content enters the fingerprint."""


def collect_images(
    source: Images, root: str | Path | None = None, column: str = "", single: bool = True
) -> ImageCollection:
    """Return the images of any source; `column` names the column of a table that contains them.

    With `single`, the source may be one image.
    """
    # A matrix of floats could also be embeddings.
    is_one = isinstance(source, Image.Image) or (
        isinstance(source, np.ndarray) and is_image_array(source) and (source.ndim, source.dtype.kind) != (2, "f")
    )
    if is_one and not single:
        raise InputError("Expected several images, got one. Pass a list, or classify a single image with predict.")
    if isinstance(source, ImageCollection):
        images = source
    elif isinstance(source, (str, os.PathLike)):
        images = _from_path(os.fspath(source), root, single)
    else:
        items: Any
        items, names = ([source], None) if is_one else _items(source, column)
        are_paths = isinstance(items, (list, tuple)) and all(isinstance(item, (str, os.PathLike)) for item in items)
        images = from_paths(items, root) if are_paths and items else MemoryImages(items, names)
    if len(images) == 0:
        raise InputError(no_usable_image(images, {}))
    return images


def _from_path(source: str, root: str | Path | None, single: bool) -> ImageCollection:
    if not source:  # an empty variable of the shell would be the current folder
        raise InputError("The path of the images is empty.")
    path = Path(source)
    if single and path.suffix.lower() in SUFFIXES and is_file(path):
        return ImageCollection((path,), path.parent)
    if is_partition_folder(source):
        return Embeddings.from_partitions(source)
    return Embeddings.from_file(path) if is_array_file(path) else find_images(source, root)


def describe_source(source: object) -> str:
    """Return a few words about an input for run.json: a path as it is, anything else by its type and length."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, (list, tuple)) and all(isinstance(entry, str) for entry in source):
        return ",".join(source)
    length = f" of {len(source)}" if hasattr(source, "__len__") else ""
    return f"<{type(source).__name__}{length}>"


def _items(source: Any, column: str) -> tuple[Any, Sequence[str] | None]:  # noqa: ANN401
    """Return the images of a table, an array, a dataset or a sequence, and the names that a table has for them."""
    library = type(source).__module__.split(".")[0]
    if library == "pandas" and hasattr(source, "columns"):
        is_named = source.index.dtype.kind not in "iu" and source.index.is_unique
        names = [str(name) for name in source.index] if is_named else None
        return source[_choose(list(source.columns), column)].tolist(), names
    if library == "pyarrow" and hasattr(source, "column_names"):
        return source.column(_choose(source.column_names, column)).to_pylist(), None
    if library == "datasets" and hasattr(source, "features") and hasattr(source, "__getitem__"):
        with_images = [name for name, kind in source.features.items() if type(kind).__name__ == "Image"]
        chosen = _choose(source.column_names, column or (with_images[0] if with_images else ""))
        if chosen not in with_images:
            return source[chosen][:], None
        # Undecoded, an image has the same content as its file, and the cache knows it; a row is a mapping.
        undecoded = type(source.features[chosen])(decode=False)
        return source.select_columns([chosen]).cast_column(chosen, undecoded), None
    if hasattr(source, "detach"):
        source = source.detach().cpu().numpy()
    if isinstance(source, np.ndarray) and source.dtype.kind not in "OUS":
        if source.ndim != 4:  # a matrix could be embeddings or a gray image
            raise InputError(f"{EXPECTED}, got an array of shape {source.shape}.")
        return source, None
    if hasattr(source, "tolist"):  # paths in an array, or a pandas Series
        source = source.tolist()
    is_endless = any(cls.__name__ == "IterableDataset" for cls in type(source).__mro__)
    has_rows = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if isinstance(source, Mapping) or is_endless or not (has_rows or isinstance(source, Iterable)):
        raise InputError(f"{EXPECTED}, got {type(source).__name__}.")
    return source if has_rows else list(source), None


def _choose(columns: Sequence[str], wanted: str) -> str:
    lowered = {str(name).lower(): name for name in columns}
    found = [lowered[name] for name in (*PATH_COLUMNS, *IMAGE_KEYS) if name in lowered]
    if wanted in columns:
        return wanted
    if found and not wanted:
        return found[0]
    problem = f"No column {wanted!r}.{nearest(wanted, lowered)}" if wanted else "Which column has the images?"
    listed = ", ".join(map(str, columns)) or "none"
    raise InputError(f"{problem} Found: {listed}. Name it with image_column, or call it 'image' or 'path'.")


class MemoryImages(ImageCollection):
    """Images in memory or in a dataset that loads them; an item that fails is skipped like an unreadable file."""

    kind: ClassVar[str] = "memory"

    def __init__(self, items: Any, names: Iterable[str] | None = None) -> None:  # noqa: ANN401 (a list or a map-style dataset)
        super().__init__(check_names(names, len(items)), Path(), where=np.arange(len(items)), items=items)

    def read(self, position: int) -> ImageData:
        """Return one image, or raise an UnreadableImageError."""
        try:
            return image_data(self.items[int(self.where[position])])
        except UnreadableImageError:
            raise
        except InputError as error:
            raise UnreadableImageError(str(error)) from None
        except Exception as error:  # datasets raise anything
            raise UnreadableImageError(f"the dataset raised {type(error).__name__}: {error}") from error

    def _facts(self) -> Iterator[bytes]:
        """Yield all names and the contents of some images; reading a whole dataset could take hours."""
        yield from (f"{self.name(position)}\n".encode() for position in range(len(self)))
        for position in evenly_spaced(len(self), MOST_READ).tolist():
            try:
                yield self.read(position).key.tobytes()
            except UnreadableImageError:
                yield b"unreadable"


def image_data(item: Any) -> ImageData:  # noqa: ANN401 (datasets return anything)
    """Return the image of an item: a path, bytes, Pillow image, array or tensor, alone or with a label."""
    if isinstance(item, Mapping):
        if item.get("bytes") is not None:  # an undecoded image of a Hugging Face dataset
            return image_data(item["bytes"])
        keys = item if len(item) == 1 else (*IMAGE_KEYS, "path")
        found = next((item[key] for key in keys if item.get(key) is not None), None)
        if found is None:
            raise UnreadableImageError(f"no image among {', '.join(map(str, item))}, expected one of {IMAGE_KEYS}")
        return image_data(found)
    if isinstance(item, (tuple, list)) and len(item):
        return image_data(item[0])  # (image, label)
    if isinstance(item, (bytes, bytearray)):
        return ImageData(bytes(item))
    if isinstance(item, (str, os.PathLike)):
        return ImageData(read_bytes(Path(item)))
    if hasattr(item, "detach"):
        item = item.detach().cpu().numpy()
    if hasattr(item, "__array__") and not isinstance(item, Image.Image):
        item = np.asarray(item)
        if item.ndim == 3 and item.shape[0] in (1, 3, 4) and item.shape[2] not in (1, 3, 4):
            item = np.moveaxis(item, 0, 2)  # channels first, as in PyTorch
        if item.dtype.kind == "f" and item.min(initial=0) < 0:
            raise UnreadableImageError("negative pixels: leave the normalization to captune, which knows the model's")
    return ImageData(as_image(item))
