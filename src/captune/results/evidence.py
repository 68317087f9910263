"""What a run saves for its report: predictions before and after adaptation, pseudo-labels, the health check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.backbones.base import Backbone
from captune.concepts.alignment import choose_texts
from captune.core.arrays import Floats, Ints, canonical_order, row_parts, take_rows, unit_rows
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
MOST_PROBABILITIES = 4_000_000
"""Images times classes, 16 MB; of more images, a sample is saved."""
MOST_EMBEDDINGS = 2_000


@dataclass(frozen=True, eq=False)
class Evidence:
    """Data for the report, of bounded size for any number of images.

    Attributes:
        arrays: `before_labels` (readable images,); `rows`, `before`, `after` of the saved images; `embedded_rows` and
            `vectors` of a sample; `class_vectors` and `logit_scale`; `history` (changes, 3), the epoch, readable image
            and class of each change of a pseudo-label, -1 if it was taken away.
        unlabeled: The readable images without a label, which positions in the pseudo-labels count.
        history: The pseudo-labels after some epochs, the final ones last.
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
        changes = np.array(arrays["history"])
        changes[:, 2] = np.append(class_of, -1)[changes[:, 2]]
        arrays["history"] = changes
        made = [
            (epoch, replace(labels, labels=class_of[labels.labels], n_classes=len(n_parts), candidates=None))
            for epoch, labels in self.history[-1:]
        ]
        return replace(self, arrays=arrays, history=made)

    def pseudo_label_rows(self, names: Sequence[str]) -> Iterator[Sequence[object]]:
        """Yield the rows of `pseudo_labels.csv`."""
        labels = self.history[-1][1]
        for i, position in enumerate(labels.image_index.tolist()):
            confidence, source = f"{labels.confidence[i]:.6f}", Source(int(labels.source[i])).name.lower()
            yield self.unlabeled.name(position), names[labels.labels[i]], confidence, int(labels.round[i]), source


def changes_of(history: Sequence[tuple[int, PseudoLabels]], rows: Ints, n_images: int) -> Ints:
    """Return epoch, row and class of each change `(changes, 3)`; `rows` are those of the images of the labels."""
    before, found = np.full(n_images, -1), [np.empty((0, 3), dtype=np.int64)]
    for epoch, labels in history:
        now = np.full(n_images, -1)
        now[rows[labels.image_index]] = labels.labels
        changed = np.flatnonzero(now != before)
        found.append(np.stack([np.full(len(changed), epoch), changed, now[changed]], axis=1))
        before = now
    return np.concatenate(found)


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
        if choose_texts(judged, class_vectors, described, backbone.logit_scale, *known)[0]:
            texts = described
    unlabeled = task.unlabeled.subset(context.embed(backbone, task.unlabeled).image_index)
    row_of = {images.name(position): row for row, position in enumerate(predictions.image_index.tolist())}
    rows = np.asarray([row_of[unlabeled.name(i)] for i in range(len(unlabeled))], dtype=np.int64)
    arrays = {
        "history": changes_of(context.history, rows, n_images).astype(np.int32),
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
        unlabeled=unlabeled,
        history=tuple(context.history),
        health=check_health(*(vectors, before, after, texts, backbone.logit_scale), labeled=known[0], labels=known[1])
        if not is_same
        else None,
    )
