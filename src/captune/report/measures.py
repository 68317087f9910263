"""The numbers in a report: before and after adaptation, by class and by confused group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.concepts.confusion import ConfusedGroup, groups_of_predictions
from captune.concepts.mismatch import MismatchFindings, detect_mismatch
from captune.core.arrays import Floats, Ints
from captune.labeling.pseudo_labels import PseudoLabels
from captune.results.metrics import Metrics, expected_calibration_error, summarize
from captune.results.run import Run

TRUSTED = 0.5
"""An image with at least this confidence is more likely right than wrong, if confidences are honest."""
MOST_COMPARED = 1000
"""Confused groups are looked for among this many classes: every pair is compared."""
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
    def metrics(self) -> tuple[Metrics, Metrics]:
        """Return the metrics before and after adaptation."""
        before, after = (
            summarize(self.run.arrays[name][self.known], self.truth, self.run.n_classes) for name in ("before", "after")
        )
        return before, after

    def accuracies(self, after: bool) -> NDArray[np.float64]:
        """Return the accuracy of each class, nan for classes without labeled images."""
        values = self.metrics[after].per_class_accuracy
        return np.asarray([np.nan if value is None else value for value in values], dtype=np.float64)

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

    def group_measures(self, group: ConfusedGroup) -> dict[str, Any]:
        """Return the number of labeled images of a group, and their accuracy and calibration error."""
        inside = np.flatnonzero(np.isin(self.truth, group.classes))
        numbers: dict[str, Any] = {"n_images": len(inside)}
        for name in ("before", "after"):
            probabilities, truth = self.run.arrays[name][self.known][inside], self.truth[inside]
            has_any = len(inside) > 0
            numbers[f"accuracy_{name}"] = float((probabilities.argmax(axis=1) == truth).mean()) if has_any else None
            numbers[f"ece_{name}"] = expected_calibration_error(probabilities, truth) if has_any else None
        return numbers

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

    @cached_property
    def _detected(self) -> MismatchFindings | None:
        """Return what the audit finds in the saved sample of a run whose method does not look for misleading names."""
        arrays = self.run.arrays
        if self.run.alignment or "logit_scale" not in arrays or self.run.n_classes > MOST_COMPARED:
            return None
        return detect_mismatch(self.vectors, arrays["class_vectors"], float(arrays["logit_scale"][0]))

    def first_labels(self) -> dict[str, PseudoLabels]:
        """Return the first pseudo-labels that an audit recorded, by name and by description."""
        history = self.run.history if self.run.method == "audit" else ()
        return {"by name": history[0][1], "by description": history[-1][1]} if history else {}

    def precision_of(self, labels: PseudoLabels, by_class: bool = True) -> NDArray[np.float64]:
        """Return the share of right pseudo-labels of each class, or of all; nan where no true label is known."""
        assert self.run.truth is not None
        truth = self.run.truth[labels.image_index]
        given = labels.labels[truth >= 0] if by_class else np.zeros(int((truth >= 0).sum()), dtype=np.int64)
        n_groups = self.run.n_classes if by_class else 1
        counts = np.bincount(given, minlength=n_groups)
        right = np.bincount(given, weights=(labels.labels == truth)[truth >= 0], minlength=n_groups)
        return np.where(counts > 0, right / np.maximum(counts, 1), np.nan)

    def first_labels_precision(self) -> dict[str, float]:
        """Return the share of right first pseudo-labels by name and by description, empty without true labels."""
        found = self.first_labels() if self.has_truth else {}
        return {title: float(self.precision_of(labels, by_class=False)[0]) for title, labels in found.items()}

    def _recorded(self, key: str) -> NDArray[np.float64]:
        values = self.run.alignment.get(key, {})
        return np.asarray([values.get(name, np.nan) for name in self.run.names], dtype=np.float64)

    @property
    def mismatched(self) -> list[int]:
        """Return the classes with misleading names, the most frequently found first."""
        if self._detected is not None:
            return [int(c) for c in self._detected.mismatched]
        place = {name: class_id for class_id, name in enumerate(self.run.names)}
        ids = [place[name] for name in self.run.alignment.get("mismatched", [])]
        return sorted(ids, key=lambda c: (-self.frequency[c], c))
