"""Embeddings of images and class texts in one .npz file, for benchmarks without images or weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from captune.benchmark.datasets.base import FACTS, Dataset, LoadedDataset
from captune.core.arrays import Ints
from captune.core.errors import InputError
from captune.core.files import is_file
from captune.data.precomputed import ArrayFile, ClassTexts, Embeddings


class Npz(Dataset):
    """A file with train_images, train_labels, test_images, test_labels, texts, names and, optionally, logit_scale.

    The pool are the train images. No backbone is loaded.
    """

    facts = FACTS["npz"]
    takes_file = True

    def is_found(self, root: Path) -> bool:
        """Return whether the file is below this root."""
        return bool(self.file) and is_file(root / self.file)

    def load(self, root: Path) -> LoadedDataset:
        """Return embeddings with their labels and class texts."""
        if not self.is_found(root):
            wanted = self.file or "FILE.npz, named as in npz:FILE.npz"
            raise InputError(f"No embeddings in {str(root)!r}. Looked for: {wanted}")
        path = root / self.file
        texts = ClassTexts.from_file(path)
        pool, test = _part(path, "train"), _part(path, "test")
        widths = {pool[0].width, test[0].width, texts.width}
        try:
            if len(widths) > 1:
                raise InputError(f"images and texts have different widths: {sorted(widths)}.")
            return LoadedDataset(texts.names, *pool, *test, texts=texts)
        except InputError as error:
            raise InputError(f"{str(path)!r}: {error}") from error


def _part(path: Path, part: str) -> tuple[Embeddings, Ints]:
    vectors = ArrayFile(f"{path}:{part}_images").choose((), "embeddings", n_axes=2)
    labels = ArrayFile(f"{path}:{part}_labels").choose((), "labels", n_axes=1)
    if labels.dtype.kind not in "iu":
        raise InputError(
            f"'{part}_labels' in {str(path)!r} has type {labels.dtype}, expected class ids: positions in 'names'."
        )
    return Embeddings(vectors, (f"{part}/{i:06d}" for i in range(len(vectors)))), np.asarray(labels, dtype=np.int64)
