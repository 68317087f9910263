"""Everything that `adapt` and `predict` take as images, turned into an image collection."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captune.core.errors import InputError, nearest
from captune.core.files import is_file
from captune.data.decoding import EncodedImage, ImageData, UnreadableImageError, as_image, is_image_array, read_bytes
from captune.data.images import PATH_COLUMNS, ImageCollection, ItemCollection, find_images, from_paths, no_usable_image
from captune.data.keys import Keys, content_key
from captune.data.partition_folder import is_partition_folder
from captune.data.precomputed import Embeddings, check_names, is_array_file
from captune.data.shards import SUFFIXES

Images: TypeAlias = "str | os.PathLike[str] | ImageCollection | Iterable[Any] | Any"
"""A path; a sequence of paths, Pillow images or arrays; an array; a dataset; a table; or `Embeddings`."""
EXPECTED = (
    "Expected a path, a sequence of paths, Pillow images or arrays, an array (images, height, width, 3), a map-style "
    "dataset, a table with a path or image column, or captune.Embeddings"
)

IMAGE_KEYS = ("image", "img", "images", "photo", "picture", "pixels", "pixel_values", "jpg", "png")
"""Columns and dictionary keys that usually contain the image."""
MOST_READ = 64
"""Images whose content enters the fingerprint; reading a whole dataset could take hours."""


def collect_images(
    source: Images, root: str | Path | None = None, column: str = "", single: bool = True
) -> ImageCollection:
    """Return the images of any source; `column` names the column of a table that contains them.

    With `single`, the source may be one image.
    """
    is_one = isinstance(source, Image.Image) or (isinstance(source, np.ndarray) and _is_one_image(source))
    if is_one and not single:
        raise InputError("Expected several images, got one. Pass a list, or classify a single image with predict.")
    if single and isinstance(source, (str, os.PathLike)) and _is_image_file(Path(source)):
        return ImageCollection((Path(source),), Path(source).parent)
    images = MemoryImages([source]) if is_one else _collect(source, root, column)
    if len(images) == 0:
        raise InputError(no_usable_image(images, {}))
    return images


def describe_source(source: object) -> str:
    """Return a few words about an input for run.json: a path as it is, anything else by its type and length."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, (list, tuple)) and all(isinstance(entry, str) for entry in source):
        return ",".join(source)
    length = f" of {len(source)}" if hasattr(source, "__len__") else ""
    return f"<{type(source).__name__}{length}>"


def _collect(source: Any, root: str | Path | None, column: str) -> ImageCollection:  # noqa: ANN401, PLR0911
    if isinstance(source, ImageCollection):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _from_path(source, root)
    table = _table_column(source, column)
    if table is not None:
        return _from_items(*table, root)
    if hasattr(source, "detach"):  # a tensor
        source = source.detach().cpu().numpy()
    if isinstance(source, np.ndarray):
        return _from_array(source, root)
    if hasattr(source, "tolist") and hasattr(source, "index"):  # a pandas Series
        return _from_items(source.tolist(), None, root)
    is_endless = any(cls.__name__ == "IterableDataset" for cls in type(source).__mro__)
    if isinstance(source, Mapping) or is_endless:
        hint = " Name one of its splits." if isinstance(source, Mapping) else " Make it a map-style dataset."
        raise InputError(f"{EXPECTED}, got {type(source).__name__}.{hint}")
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return _from_items(source, None, root)
    if isinstance(source, Iterable):
        return _from_items(list(source), None, root)
    raise InputError(f"{EXPECTED}, got {type(source).__name__}.")


def _is_image_file(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and is_file(path)


def _is_one_image(array: NDArray[Any]) -> bool:
    """Return whether an array is one image; a matrix of floats could also be embeddings."""
    return is_image_array(array) and not (array.ndim == 2 and array.dtype.kind == "f")


def _from_path(source: str | os.PathLike[str], root: str | Path | None) -> ImageCollection:
    if not os.fspath(source):  # an empty variable of the shell would be the current folder
        raise InputError("The path of the images is empty.")
    path = Path(source)
    if is_partition_folder(os.fspath(source)):
        return Embeddings.from_partitions(os.fspath(source))
    if is_array_file(path):
        return Embeddings.from_file(path)
    return find_images(os.fspath(source), root)


def _from_array(array: NDArray[Any], root: str | Path | None) -> ImageCollection:
    if array.dtype.kind in "OUS":
        return _from_items(array.tolist(), None, root)
    if array.ndim == 4:
        return MemoryImages(array)
    if array.ndim == 2 and array.dtype.kind == "f":
        raise InputError(
            f"An array of shape {array.shape} can be embeddings or a gray image. Pass captune.Embeddings(vectors) for "
            "embeddings, or a list of images."
        )
    raise InputError(f"{EXPECTED}, got an array of shape {array.shape}.")


def _from_items(items: Any, names: Sequence[str] | None, root: str | Path | None) -> ImageCollection:  # noqa: ANN401
    if isinstance(items, (list, tuple)) and items and all(isinstance(item, (str, os.PathLike)) for item in items):
        return from_paths(items, root)
    return MemoryImages(items, names)


def _table_column(source: Any, column: str) -> tuple[Any, Sequence[str] | None] | None:  # noqa: ANN401
    """Return the items in the image column of a table and the names of its rows, or None for anything else."""
    library = type(source).__module__.split(".")[0]
    if library == "pandas" and hasattr(source, "columns"):
        items = source[_choose(list(source.columns), column)].tolist()
        is_named = source.index.dtype.kind not in "iu" and source.index.is_unique
        return items, [str(name) for name in source.index] if is_named else None
    if library == "pyarrow" and hasattr(source, "column_names"):
        return source.column(_choose(source.column_names, column)).to_pylist(), None
    if library == "datasets" and hasattr(source, "features") and hasattr(source, "__getitem__"):
        with_images = [name for name, kind in source.features.items() if type(kind).__name__ == "Image"]
        chosen = _choose(source.column_names, column or (with_images[0] if with_images else ""))
        if chosen not in with_images:
            return source[chosen][:], None
        # Undecoded, an image has the same content as its file, and the cache knows it.
        undecoded = type(source.features[chosen])(decode=False)
        return _Column(source.select_columns([chosen]).cast_column(chosen, undecoded), chosen), None
    return None


def _choose(columns: Sequence[str], wanted: str) -> str:
    lowered = {str(name).lower(): name for name in columns}
    if wanted:
        if wanted in columns:
            return wanted
        raise InputError(f"No column {wanted!r}.{nearest(wanted, map(str, columns))} Found: {', '.join(lowered)}.")
    found = next((lowered[name] for name in (*PATH_COLUMNS, *IMAGE_KEYS) if name in lowered), None)
    if found is None:
        raise InputError(
            f"Which column has the images? Found: {', '.join(lowered) or 'none'}. Name it with image_column, or "
            "call it 'image' or 'path'."
        )
    return found


class _Column:
    """One column of a Hugging Face dataset, read row by row."""

    def __init__(self, table: Any, name: str) -> None:  # noqa: ANN401
        self._table, self._name = table, name

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, row: int) -> Any:  # noqa: ANN401
        return self._table[int(row)][self._name]


class MemoryImages(ItemCollection):
    """Images in memory or in a dataset that loads them; an item that fails is skipped like an unreadable file."""

    kind: ClassVar[str] = "memory"

    def __init__(self, items: Any, names: Iterable[str] | None = None) -> None:  # noqa: ANN401 (a list or a map-style dataset)
        super().__init__(items, check_names(names, len(items)))

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

    @property
    def place(self) -> str:
        """Return where the images are, for messages."""
        return "memory"

    @property
    def fingerprint(self) -> str:
        """Return a digest of all names and the content of some images."""
        digest = hashlib.blake2b(digest_size=16)
        for position in range(len(self)):
            digest.update(f"{self.name(position)}\n".encode())
        for position in np.unique(np.linspace(0, len(self) - 1, min(len(self), MOST_READ)).astype(np.int64)).tolist():
            try:
                digest.update(self.read(position).key.tobytes())
            except UnreadableImageError:
                digest.update(b"unreadable")
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"MemoryImages({len(self)} images)"


@dataclass(frozen=True)
class DecodedImage:
    """An image that is in memory already."""

    image: Image.Image

    @property
    def key(self) -> Keys:
        """Return the digest of the pixels."""
        return content_key(f"pixels {self.image.size}\n".encode() + self.image.tobytes())

    def decode(self, smallest: int | None = None) -> Image.Image:
        """Return the image."""
        return self.image


def image_data(item: Any) -> ImageData:  # noqa: ANN401 (datasets return anything)
    """Return the image of an item: a path, bytes, Pillow image, array or tensor, alone or with a label."""
    if isinstance(item, Mapping):
        return image_data(_of_mapping(item))
    if isinstance(item, (tuple, list)) and len(item):
        return image_data(item[0])  # (image, label)
    if isinstance(item, (bytes, bytearray)):
        return EncodedImage(bytes(item))
    if isinstance(item, (str, os.PathLike)):
        return EncodedImage(read_bytes(Path(item)))
    if isinstance(item, Image.Image):
        return DecodedImage(as_image(item))
    array = item.detach().cpu().numpy() if hasattr(item, "detach") else item
    shape: tuple[int, ...] = getattr(array, "shape", ())
    if len(shape) == 3 and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4):
        array = np.moveaxis(np.asarray(array), 0, 2)  # channels first, as in PyTorch
    if len(shape) and np.asarray(array).dtype.kind == "f" and np.asarray(array).min(initial=0) < 0:
        raise UnreadableImageError("negative pixels: leave the normalization to captune, which knows the model's")
    return DecodedImage(as_image(array))


def _of_mapping(item: Mapping[Any, Any]) -> Any:  # noqa: ANN401
    if item.get("bytes") is not None:  # an undecoded image of a Hugging Face dataset
        return item["bytes"]
    key = next((key for key in (*IMAGE_KEYS, "path") if item.get(key) is not None), None)
    if key is None:
        raise UnreadableImageError(f"no image among {', '.join(map(str, item))}, expected one of {IMAGE_KEYS}")
    return item[key]
