"""Images that are not files: Pillow images, arrays, tensors and the items of datasets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from PIL import Image

from captune.core.errors import InputError
from captune.data.decoding import EncodedImage, ImageData, UnreadableImageError, as_image, read_bytes
from captune.data.images import ItemCollection
from captune.data.keys import Keys, content_key
from captune.data.precomputed import name_paths

IMAGE_KEYS = ("image", "img", "images", "photo", "picture", "pixels", "pixel_values", "jpg", "png")
"""Columns and dictionary keys that usually contain the image."""
MOST_READ = 64
"""Images whose content enters the fingerprint; reading a whole dataset could take hours."""


class Items(Protocol):
    """Anything with a length and positions, such as a list or a map-style dataset."""

    def __len__(self) -> int:
        """Return the number of items."""

    def __getitem__(self, position: int, /) -> Any:  # noqa: ANN401
        """Return one item."""


class MemoryImages(ItemCollection):
    """Images in memory or in a dataset that loads them; an item that fails is skipped like an unreadable file."""

    items: Items
    kind: ClassVar[str] = "memory"

    def __init__(self, items: Items, names: Iterable[str] | None = None) -> None:
        super().__init__(name_paths(names, len(items)), Path())
        object.__setattr__(self, "items", items)

    def read(self, position: int) -> ImageData:
        """Return one image, or raise an UnreadableImageError."""
        try:
            return image_data(self.items[self.paths.row(position)])
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
