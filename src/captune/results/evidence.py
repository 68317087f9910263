"""What a run saves for its report: predictions before and after adaptation, pseudo-labels, the health check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.backbones.base import Backbone
from captune.concepts.alignment import choose_texts
from captune.core.arrays import Floats, canonical_order, row_parts, take_rows, unit_rows
from captune.data.images import ImageCollection
from captune.data.task import AdaptationTask
from captune.data.vocabulary import Vocabulary
from captune.embeddings.embed import embed_classes, score
from captune.embeddings.predictions import Predictions
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.methods.base import Context
from captune.results.health import MOST_JUDGED, HealthCheck, check_health

FILE = "evidence.safetensors"
PSEUDO_LABELS = "pseudo_labels.csv"
HISTORY = "pseudo_label_history.csv"
MOST_PROBABILITIES = 4_000_000
"""Images times classes, 16 MB; of more images, a sample is saved."""
MOST_EMBEDDINGS = 2_000

Table = tuple[Sequence[str], Iterator[Sequence[object]]]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Data for the report, of bounded size for any number of images.

    Attributes:
        arrays: `before_labels` (readable images,); `rows`, `before`, `after` of the saved images; `embedded_rows` and
            `vectors` of a sample; `class_vectors` and `logit_scale`.
        unlabeled: The readable images without a label, which positions in `history` count.
        history: The pseudo-labels after some epochs; the last entry holds the final ones.
        health: The health check; None for a run without adaptation.
    """

    arrays: Mapping[str, NDArray[Any]]
    unlabeled: ImageCollection
    history: Sequence[tuple[int, PseudoLabels]]
    health: HealthCheck | None

    def undone(self) -> Evidence:
        """Return the evidence of a run whose adaptation was discarded in favor of zero-shot."""
        return replace(self, arrays={**self.arrays, "after": self.arrays["before"]})

    def united(self, n_parts: Sequence[int], unite: Callable[[Floats], Floats], after: Floats) -> Evidence:
        """Return the evidence of parts of classes as that of the classes, which predict `after` `(images, classes)`."""
        class_of, starts = np.repeat(np.arange(len(n_parts)), n_parts), np.cumsum([0, *n_parts[:-1]])
        arrays = dict(self.arrays)
        arrays["before"], arrays["after"] = unite(arrays["before"]), after[arrays["rows"]]
        arrays["before_labels"] = class_of[arrays["before_labels"]].astype(np.int32)
        arrays["class_vectors"] = unit_rows(np.add.reduceat(arrays["class_vectors"], starts, axis=0))
        history = [
            (epoch, replace(made, labels=class_of[made.labels], n_classes=len(n_parts), candidates=None))
            for epoch, made in self.history
        ]
        return replace(self, arrays=arrays, history=history)

    def tables(self, names: Sequence[str]) -> dict[str, Table]:
        """Return the header and rows of each table, by file name; empty without pseudo-labels."""
        if not self.history:
            return {}
        return {
            PSEUDO_LABELS: (("path", "label", "confidence", "round", "source"), self._final_rows(names)),
            HISTORY: (("epoch", "path", "label", "confidence", "source"), self._changes(names)),
        }

    def _final_rows(self, names: Sequence[str]) -> Iterator[Sequence[object]]:
        labels = self.history[-1][1]
        for i, (position, label) in enumerate(zip(labels.image_index.tolist(), labels.labels.tolist(), strict=True)):
            confidence, source = _describe(labels, i)
            yield self.unlabeled.name(position), names[label], confidence, int(labels.round[i]), source

    def _changes(self, names: Sequence[str]) -> Iterator[Sequence[object]]:
        """Yield the pseudo-labels that were added, changed or (with an empty label) removed at each epoch."""
        known: dict[int, int] = {}
        for epoch, labels in self.history:
            now = dict(zip(labels.image_index.tolist(), labels.labels.tolist(), strict=True))
            for i, (position, label) in enumerate(now.items()):
                if known.get(position) != label:
                    yield epoch, self.unlabeled.name(position), names[label], *_describe(labels, i)
            yield from ((epoch, self.unlabeled.name(gone), "", "", "") for gone in known if gone not in now)
            known = now


def _describe(labels: PseudoLabels, i: int) -> tuple[str, str]:
    return f"{labels.confidence[i]:.6f}", Source(int(labels.source[i])).name.lower()


def collect_evidence(
    task: AdaptationTask,
    images: ImageCollection,
    backbone: Backbone,
    context: Context,
    predictions: Predictions,
    vocabulary: Vocabulary,
) -> Evidence:
    """Collect the evidence of a finished run, whose classifier uses `vocabulary`; embeddings come from the cache."""
    embedded = context.embed(backbone, images)
    rows = np.searchsorted(embedded.image_index, predictions.image_index)
    vectors = take_rows(embedded.vectors, rows)
    class_vectors = embed_classes(backbone, task.vocabulary)
    before, after = score(vectors, class_vectors, backbone.logit_scale), predictions.probabilities
    n_images, n_classes = after.shape
    # Samples are those of the canonical order, the same whatever the order of the files.
    order = canonical_order(vectors)
    kept, sample = (np.sort(order[:most]) for most in (max(1, MOST_PROBABILITIES // n_classes), MOST_EMBEDDINGS))
    is_same = all(np.allclose(before[part], after[part], atol=1e-4) for part in row_parts(n_images, n_classes))
    texts, known = class_vectors, context.labeled_vectors(task, backbone)
    if not is_same and vocabulary.descriptions != task.vocabulary.descriptions:
        described = embed_classes(backbone, vocabulary)
        judged = vectors[order[:MOST_JUDGED]]
        if choose_texts(judged, class_vectors, described, backbone.logit_scale, *known).is_described:
            texts = described
    arrays = {
        "before_labels": before.argmax(axis=1).astype(np.int32),
        "rows": kept.astype(np.int32),
        "before": before[kept],
        "after": after[kept],
        "embedded_rows": sample.astype(np.int32),
        "vectors": vectors[sample].astype(np.float16),
        "class_vectors": class_vectors,
        "logit_scale": np.asarray([backbone.logit_scale], dtype=np.float32),
    }
    return Evidence(
        arrays=arrays,
        unlabeled=task.unlabeled.subset(context.embed(backbone, task.unlabeled).image_index),
        history=tuple(context.history),
        health=None
        if is_same
        else check_health(
            *(vectors, before, after, texts, backbone.logit_scale),
            labeled=known[0],
            labels=known[1],
        ),
    )
