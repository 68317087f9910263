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

from captune.core.arrays import Keys, content_key, evenly_spaced
from captune.core.errors import InputError, nearest
from captune.core.files import is_file
from captune.data.decoding import EncodedImage, ImageData, UnreadableImageError, as_image, is_image_array, read_bytes
from captune.data.images import PATH_COLUMNS, ImageCollection, ItemCollection, find_images, from_paths, no_usable_image
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
    images = _collect([source] if is_one else source, root, column, single)
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


def _collect(source: Any, root: str | Path | None, column: str, single: bool) -> ImageCollection:  # noqa: ANN401
    if isinstance(source, ImageCollection):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _from_path(os.fspath(source), root, single)
    names = None
    table = _table_column(source, column)
    if table is not None:
        source, names = table
    elif isinstance(source, np.ndarray) or hasattr(source, "detach"):
        source = _array_items(source)
    elif hasattr(source, "tolist") and hasattr(source, "index"):  # a pandas Series
        source = source.tolist()
    elif isinstance(source, Mapping):
        raise InputError(f"{EXPECTED}, got {type(source).__name__}. Name one of its splits.")
    elif any(cls.__name__ == "IterableDataset" for cls in type(source).__mro__):
        raise InputError(f"{EXPECTED}, got {type(source).__name__}. Make it a map-style dataset.")
    elif not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        if not isinstance(source, Iterable):
            raise InputError(f"{EXPECTED}, got {type(source).__name__}.")
        source = list(source)
    if isinstance(source, (list, tuple)) and source and all(isinstance(item, (str, os.PathLike)) for item in source):
        return from_paths(source, root)
    return MemoryImages(source, names)


def _is_one_image(array: NDArray[Any]) -> bool:
    """Return whether an array is one image; a matrix of floats could also be embeddings."""
    return is_image_array(array) and not (array.ndim == 2 and array.dtype.kind == "f")


def _from_path(source: str, root: str | Path | None, single: bool) -> ImageCollection:
    if not source:  # an empty variable of the shell would be the current folder
        raise InputError("The path of the images is empty.")
    path = Path(source)
    if single and path.suffix.lower() in SUFFIXES and is_file(path):
        return ImageCollection((path,), path.parent)
    if is_partition_folder(source):
        return Embeddings.from_partitions(source)
    return Embeddings.from_file(path) if is_array_file(path) else find_images(source, root)


def _array_items(array: Any) -> Any:  # noqa: ANN401
    """Return the images of an array or a tensor, or the paths in it."""
    array = array.detach().cpu().numpy() if hasattr(array, "detach") else array
    if array.dtype.kind in "OUS":
        return array.tolist()
    if array.ndim == 2 and array.dtype.kind == "f":
        raise InputError(
            f"An array of shape {array.shape} can be embeddings or a gray image. Pass captune.Embeddings(vectors) for "
            "embeddings, or a list of images."
        )
    if array.ndim != 4:
        raise InputError(f"{EXPECTED}, got an array of shape {array.shape}.")
    return array


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
        # Undecoded, an image has the same content as its file, and the cache knows it; a row is a mapping.
        undecoded = type(source.features[chosen])(decode=False)
        return source.select_columns([chosen]).cast_column(chosen, undecoded), None
    return None


def _choose(columns: Sequence[str], wanted: str) -> str:
    lowered = {str(name).lower(): name for name in columns}
    if wanted in columns:
        return wanted
    found = [lowered[name] for name in (*PATH_COLUMNS, *IMAGE_KEYS) if name in lowered]
    if wanted or not found:
        problem = f"No column {wanted!r}.{nearest(wanted, lowered)}" if wanted else "Which column has the images?"
        raise InputError(
            f"{problem} Found: {', '.join(map(str, columns)) or 'none'}. Name it with image_column, or call it 'image' "
            "or 'path'."
        )
    return found[0]


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
        for position in evenly_spaced(len(self), MOST_READ).tolist():
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
    keys = item if len(item) == 1 else (*IMAGE_KEYS, "path")
    key = next((key for key in keys if item.get(key) is not None), None)
    if key is None:
        raise UnreadableImageError(f"no image among {', '.join(map(str, item))}, expected one of {IMAGE_KEYS}")
    return item[key]
