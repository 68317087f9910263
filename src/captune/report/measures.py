"""The numbers in a report: before and after adaptation, by class and by confused group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.concepts.confusion import ConfusedGroup, groups_of_predictions
from captune.concepts.mismatch import detect_mismatch
from captune.core.arrays import Bools, Floats, Ints
from captune.labeling.pseudo_labels import PseudoLabels
from captune.results.metrics import Metrics, expected_calibration_error, summarize
from captune.results.run import Run

TRUSTED = 0.5
"""An image with at least this confidence is more likely right than wrong, if confidences are honest."""
MOST_COMPARED = 1000
"""Confused groups are looked for among this many classes: every pair is compared."""
MOST_DETECTED = 200
"""Up to this many classes, misleading names are looked for in the saved sample, which has ten images of each."""
FEWEST_OF_CLUSTER = 3


@dataclass(frozen=True, eq=False)
class Measures:
    """Everything that is computed from a run, each at most once."""

    run: Run

    @cached_property
    def rows(self) -> Ints:
        """Return the images with saved probabilities, as rows of the predictions."""
        return np.asarray(self.run.arrays.get("rows", []), dtype=np.int64)

    @cached_property
    def known(self) -> Ints:
        """Return the images in `rows` that have a true label, as positions in `rows`."""
        if self.run.truth is None:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(self.run.truth[self.rows] >= 0)

    @property
    def has_truth(self) -> bool:
        """Return whether accuracies can be measured."""
        return len(self.known) > 0

    @cached_property
    def truth(self) -> Ints:
        """Return the true classes of the images in `known`."""
        assert self.run.truth is not None
        return self.run.truth[self.rows][self.known]

    @cached_property
    def labeled(self) -> tuple[Floats, Floats]:
        """Return the probabilities of the images in `known` before and after adaptation."""
        return self.run.arrays["before"][self.known], self.run.arrays["after"][self.known]

    @cached_property
    def metrics(self) -> tuple[Metrics, Metrics]:
        """Return the metrics before and after adaptation."""
        before, after = (summarize(part, self.truth, self.run.n_classes) for part in self.labeled)
        return before, after

    def counts(self, after: bool) -> Ints:
        """Return the number of images predicted as each class."""
        labels = self.run.labels if after else self.run.before_labels
        return np.bincount(labels, minlength=self.run.n_classes)

    @cached_property
    def embedded_rows(self) -> Ints:
        """Return the images with saved embeddings, as rows of the predictions."""
        return np.asarray(self.run.arrays.get("embedded_rows", []), dtype=np.int64)

    @cached_property
    def vectors(self) -> Floats:
        """Return the embeddings of the images in `embedded_rows`."""
        return np.asarray(self.run.arrays["vectors"], dtype=np.float32)

    @cached_property
    def groups(self) -> tuple[ConfusedGroup, ...]:
        """Return the groups of confused classes, among those with the most images."""
        arrays, counts = self.run.arrays, self.counts(after=False) + self.counts(after=True)
        if "before" not in arrays:
            return ()
        classes = np.sort(np.argsort(-counts, kind="stable")[:MOST_COMPARED])
        place = np.full(self.run.n_classes, -1)
        place[classes] = np.arange(len(classes))
        own = np.asarray(place[self.run.labels[self.embedded_rows]], dtype=np.int64)
        inside = own >= 0
        found = groups_of_predictions(
            self.vectors[inside], own[inside], arrays["class_vectors"][classes], arrays["before"][:, classes]
        )
        return tuple(replace(group, classes=tuple(int(classes[c]) for c in group.classes)) for group in found)

    @cached_property
    def concentration(self) -> NDArray[np.float64]:
        """Return the share of each class's images in its largest cluster, nan where unknown (Figure 1).

        With labels, these are the true images in k-means clusters, as in the paper; without, the likely images of each
        class in the detection of misleading names.
        """
        if self.run.truth is None or len(self.embedded_rows) < FEWEST_OF_CLUSTER * self.run.n_classes:
            return self._recorded("concentration")
        from sklearn.cluster import KMeans

        truth = self.run.truth[self.embedded_rows]
        n_clusters = min(self.run.n_classes, len(self.vectors))
        found = np.full(self.run.n_classes, np.nan)
        owners = KMeans(n_clusters, n_init=2, random_state=0).fit_predict(self.vectors)
        for class_id in np.unique(truth[truth >= 0]):
            inside = owners[truth == class_id]
            found[class_id] = np.bincount(inside).max() / len(inside)
        return found

    @cached_property
    def highest_confidence(self) -> NDArray[np.float64]:
        """Return the confidence of the most confident image of each class, 0 without any."""
        highest = np.zeros(self.run.n_classes)
        np.maximum.at(highest, self.run.labels, self.run.confidence)
        return highest

    @cached_property
    def frequency(self) -> NDArray[np.float64]:
        """Return how often each class name was found to be misleading, nan where unknown."""
        return self._recorded("frequency")

    def _recorded(self, key: str) -> NDArray[np.float64]:
        values = self.run.alignment.get(key, {})
        return np.asarray([values.get(name, np.nan) for name in self.run.names], dtype=np.float64)

    @cached_property
    def mismatched(self) -> list[int]:
        """Return the classes with misleading names, the most frequently found first.

        If the method of the run did not look for them, they are what the audit finds in the saved sample.
        """
        arrays, alignment = self.run.arrays, self.run.alignment
        if not alignment and "logit_scale" in arrays and self.run.n_classes <= MOST_DETECTED:
            found = detect_mismatch(self.vectors, arrays["class_vectors"], float(arrays["logit_scale"][0]))
            return [int(c) for c in found.mismatched]
        ids = [self.run.names.index(name) for name in alignment.get("mismatched", [])]
        return sorted(ids, key=lambda c: (-self.frequency[c], c))

    @property
    def review(self) -> dict[str, Any]:
        """Return what people's answers say, empty if nobody was asked."""
        return self.run.card.get("review") or {}

    @property
    def mismatched_names(self) -> list[str]:
        """Return the misleading names, the most frequently found first."""
        return [self.run.names[c] for c in self.mismatched]

    @cached_property
    def described(self) -> dict[str, list[str]]:
        """Return the descriptions of the classes that have any."""
        return {name: texts for name, texts in self.run.alignment.get("descriptions", {}).items() if texts}

    def first_labels(self) -> dict[str, PseudoLabels]:
        """Return the first pseudo-labels that an audit recorded, by name and by description."""
        history = self.run.history if self.run.method == "audit" else ()
        return {"by name": history[0][1], "by description": history[-1][1]} if history else {}

    def first_labels_precision(self) -> dict[str, float]:
        """Return the share of right first pseudo-labels by name and by description, empty without true labels."""
        found = self.first_labels() if self.has_truth else {}
        return {title: float(self.checked(labels)[1].mean()) for title, labels in found.items()}

    def checked(self, labels: PseudoLabels) -> tuple[Ints, Bools]:
        """Return the pseudo-labels of images with a true label, and which of them are right."""
        assert self.run.truth is not None
        truth = self.run.truth[labels.image_index]
        return labels.labels[truth >= 0], (labels.labels == truth)[truth >= 0]


def group_numbers(group: ConfusedGroup, probabilities: Floats, truth: Ints) -> dict[str, Any]:
    """Return the number of labeled images of a group, and their accuracy and calibration error, None without any."""
    inside = np.isin(truth, group.classes)
    own, labels = probabilities[inside], truth[inside]
    if not len(labels):
        return {"images": 0, "accuracy": None, "ece": None}
    accuracy = float((own.argmax(axis=1) == labels).mean())
    return {"images": len(labels), "accuracy": accuracy, "ece": expected_calibration_error(own, labels)}
