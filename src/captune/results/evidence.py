"""What a run keeps so that a report can be made later, without the backbone: before, after, and what lay between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.backbones.base import Backbone
from captune.core.arrays import Ints
from captune.core.scratch import row_parts, take_rows
from captune.data.images import ImageCollection
from captune.data.task import AdaptationTask
from captune.embeddings.embed import embed_classes, score
from captune.embeddings.predictions import Predictions
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.methods.base import Context
from captune.results.health import HealthCheck, check_health

FILE = "evidence.safetensors"
PSEUDO_LABELS = "pseudo_labels.csv"
HISTORY = "pseudo_label_history.csv"
MOST_PROBABILITIES = 4_000_000
"""Probabilities kept of each kind, images times classes: 16 MB; beyond it an even sample of the images is kept."""
MOST_EMBEDDINGS = 2_000

Table = tuple[Sequence[str], Iterator[Sequence[object]]]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What happened to the images on the way, bounded in size whatever the number of images.

    Attributes:
        arrays: `before_labels` (readable images,); `rows`, `before`, `after` for kept images; `embedded_rows` and
            `vectors` for a sample; `class_vectors` before adaptation; what the method kept, such as `margin`.
        labeled: The images that positions in `history` refer to.
        history: The pseudo-labels as they stood after some epochs, the last of them at the end.
        health: The check without labels; None where there is nothing to compare.
    """

    arrays: Mapping[str, NDArray[Any]]
    labeled: ImageCollection
    history: Sequence[tuple[int, PseudoLabels]]
    health: HealthCheck | None

    def undone(self) -> Evidence:
        """Return the evidence of a run that kept zero-shot: what came out is what was there before."""
        return replace(self, arrays={**self.arrays, "after": self.arrays["before"]})

    def tables(self, names: Sequence[str]) -> dict[str, Table]:
        """Return header and rows of every table to write, by file name; none without pseudo-labels."""
        if not self.history:
            return {}
        return {
            PSEUDO_LABELS: (("path", "label", "confidence", "round", "source"), self._last_rows(names)),
            HISTORY: (("epoch", "path", "label", "confidence", "source"), self._changes(names)),
        }

    def _last_rows(self, names: Sequence[str]) -> Iterator[Sequence[object]]:
        labels = self.history[-1][1]
        for i, (position, label) in enumerate(zip(labels.image_index.tolist(), labels.labels.tolist(), strict=True)):
            sure, source = f"{labels.confidence[i]:.6f}", Source(int(labels.source[i])).name.lower()
            yield self.labeled.name(position), names[label], sure, int(labels.round[i]), source

    def _changes(self, names: Sequence[str]) -> Iterator[Sequence[object]]:
        """Yield what is new, changed or (with an empty label) gone at each epoch; all of it would be long."""
        known: dict[int, int] = {}
        for epoch, labels in self.history:
            now = dict(zip(labels.image_index.tolist(), labels.labels.tolist(), strict=True))
            for i, (position, label) in enumerate(now.items()):
                if known.get(position) != label:
                    sure, source = f"{labels.confidence[i]:.6f}", Source(int(labels.source[i])).name.lower()
                    yield epoch, self.labeled.name(position), names[label], sure, source
            yield from ((epoch, self.labeled.name(gone), "", "", "") for gone in known if gone not in now)
            known = now


def gather(
    task: AdaptationTask, images: ImageCollection, backbone: Backbone, context: Context, predictions: Predictions
) -> Evidence:
    """Gather the evidence of a run that just ended; the embeddings are those that the run has already."""
    embedded = context.embed(backbone, images)
    rows = np.searchsorted(embedded.image_index, predictions.image_index)
    vectors = take_rows(embedded.vectors, rows)
    class_vectors = embed_classes(backbone, task.vocabulary)
    before, after = score(vectors, class_vectors, backbone.logit_scale), predictions.probabilities
    n_images, n_classes = after.shape
    kept, sample = _spread(n_images, MOST_PROBABILITIES // n_classes), _spread(n_images, MOST_EMBEDDINGS)
    is_same = all(np.allclose(before[part], after[part], atol=1e-4) for part in row_parts(n_images, n_classes))
    arrays = {
        "before_labels": before.argmax(axis=1).astype(np.int32),
        "rows": kept.astype(np.int32),
        "before": before[kept],
        "after": after[kept],
        "embedded_rows": sample.astype(np.int32),
        "vectors": vectors[sample].astype(np.float16),
        "class_vectors": class_vectors,
        **context.arrays,
    }
    return Evidence(
        arrays=arrays,
        # Methods count the unlabeled images that can be read.
        labeled=task.unlabeled.subset(context.embed(backbone, task.unlabeled).image_index),
        history=tuple(context.history),
        health=None if is_same else check_health(vectors, before, after),
    )


def _spread(n_images: int, most: int) -> Ints:
    """Return at most so many positions, spread evenly."""
    return np.unique(np.linspace(0, n_images - 1, max(1, min(n_images, most))).astype(np.int64))
