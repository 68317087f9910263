"""Small versions of the images of a collection, decoded in guarded processes and kept for a while."""

from __future__ import annotations

import io
from collections import OrderedDict

from PIL import Image

from captune.data.decoding import EncodedImage, UnreadableImageError
from captune.data.guarded_decoding import MOST_MEMORY, GuardedDecoder
from captune.data.images import ImageCollection
from captune.data.precomputed import Embeddings
from captune.web.predictor import DecodingPool

SIDES = (96, 192, 1024)
"""Longest side of the versions: small, medium and large."""
SECONDS = 20.0
MOST_KEPT = 64_000_000
"""Bytes of thumbnails that are kept in memory."""


class Thumbnails:
    """JPEG versions of images."""

    def __init__(self, images: ImageCollection) -> None:
        self.images = images
        self._pool = DecodingPool(2, MOST_MEMORY)
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._size = 0

    def replace(self, images: ImageCollection) -> None:
        """Show other images from now on."""
        self.images, self._size = images, 0
        self._kept.clear()

    @property
    def has_pictures(self) -> bool:
        """Return whether there is something to show."""
        return not isinstance(self.images, Embeddings)

    async def read(self, position: int, side: int) -> bytes:
        """Return an image as JPEG, with the given longest side or smaller; only called in the event loop's thread."""
        key = position, side
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        content = await self._pool.run(lambda decoder: self._shrink(decoder, position, side))
        self._kept[key] = content
        self._size += len(content)
        while self._size > MOST_KEPT:
            self._size -= len(self._kept.popitem(last=False)[1])
        return content

    def close(self) -> None:
        """End the processes."""
        self._pool.close()

    def _shrink(self, decoder: GuardedDecoder, position: int, side: int) -> bytes:
        if not self.has_pictures:
            raise UnreadableImageError("there are embeddings only")
        found = self.images.read(position)
        if isinstance(found, EncodedImage):
            image = decoder.image(found.content, SECONDS, smallest=side)
        else:
            image = found.decode(side).copy()
        image.thumbnail((side, side), Image.Resampling.BICUBIC)
        target = io.BytesIO()
        image.save(target, "JPEG", quality=85)
        return target.getvalue()
