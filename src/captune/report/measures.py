"""What the report shows as numbers: before and after, class by class and group by group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.concepts.confusion import class_prototypes, class_similarity
from captune.concepts.groups import ConfusedGroup, class_closeness, confused_groups
from captune.core.arrays import Floats, Ints
from captune.report.reading import RunRecord
from captune.results.metrics import Metrics, expected_calibration_error, summarize


@dataclass(frozen=True, eq=False)
class Measures:
    """A run with everything that is computed from it, each at most once."""

    run: RunRecord

    @cached_property
    def rows(self) -> Ints:
        """Return the images whose probabilities are kept, as rows of the predictions."""
        return np.asarray(self.run.arrays.get("rows", []), dtype=np.int64)

    @cached_property
    def known(self) -> Ints:
        """Return which of the kept images have a true label, as positions among the kept ones."""
        if self.run.truth is None:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(self.run.truth[self.rows] >= 0)

    @property
    def has_truth(self) -> bool:
        """Return whether before and after can be measured."""
        return len(self.known) > 0

    @cached_property
    def truth(self) -> Ints:
        """Return the true classes of the known images."""
        assert self.run.truth is not None
        return self.run.truth[self.rows][self.known]

    @cached_property
    def metrics(self) -> tuple[Metrics, Metrics]:
        """Return the metrics before and after adaptation."""
        before, after = (self.run.arrays[name][self.known] for name in ("before", "after"))
        n_classes = self.run.n_classes
        return summarize(before, self.truth, n_classes), summarize(after, self.truth, n_classes)

    def accuracies(self, after: bool) -> NDArray[np.float64]:
        """Return the accuracy of every class, nan for a class without labeled images."""
        values = self.metrics[after].per_class_accuracy
        return np.asarray([np.nan if value is None else value for value in values], dtype=np.float64)

    def counts(self, after: bool) -> Ints:
        """Return how many images are predicted as each class."""
        labels = self.run.labels if after else self.run.before_labels
        return np.bincount(labels, minlength=self.run.n_classes)

    @cached_property
    def embedded_rows(self) -> Ints:
        """Return the images whose embeddings are kept, as rows of the predictions."""
        return np.asarray(self.run.arrays.get("embedded_rows", []), dtype=np.int64)

    @cached_property
    def vectors(self) -> Floats:
        """Return their embeddings."""
        return np.asarray(self.run.arrays["vectors"], dtype=np.float32)

    @cached_property
    def prototypes(self) -> Floats:
        """Return the mean embedding of the images predicted as each class."""
        return class_prototypes(self.vectors, self.run.labels[self.embedded_rows], self.run.arrays["class_vectors"])

    @cached_property
    def similarity(self) -> Floats:
        """Return the similarity of classes that the method used last, or the same of the predictions."""
        kept = self.run.arrays.get("similarity")
        return class_similarity(self.prototypes, self.run.arrays["class_vectors"]) if kept is None else kept

    @cached_property
    def groups(self) -> tuple[ConfusedGroup, ...]:
        """Return the groups of classes that collide."""
        if "before" not in self.run.arrays or self.run.n_classes < 3:
            return ()
        texts = self.run.arrays["class_vectors"]
        return confused_groups(class_closeness(self.prototypes, texts, self.run.arrays["before"]))

    def group_measures(self, group: ConfusedGroup) -> dict[str, Any]:
        """Return how many labeled images a group has, and its accuracy and calibration before and after."""
        inside = np.flatnonzero(np.isin(self.truth, group.classes))
        numbers: dict[str, Any] = {"n_images": len(inside)}
        for name in ("before", "after"):
            probabilities = self.run.arrays[name][self.known][inside]
            right = probabilities.argmax(axis=1) == self.truth[inside] if len(inside) else np.zeros(0)
            numbers[f"accuracy_{name}"] = float(right.mean()) if len(inside) else None
            ece = expected_calibration_error(probabilities, self.truth[inside]) if len(inside) else None
            numbers[f"ece_{name}"] = ece
        return numbers

    @cached_property
    def concentration(self) -> NDArray[np.float64]:
        """Return the share of each class's images that lie in one cluster, nan where unknown (Figure 1).

        With labels it is that of the true images in k-means clusters, as in the paper; without, what the search for
        misleading names found for the likely images of each class.
        """
        found = np.full(self.run.n_classes, np.nan)
        if self.run.truth is None or not len(self.embedded_rows):
            for name, value in self.run.alignment.get("concentration", {}).items():
                found[self.run.names.index(name)] = value
            return found
        from sklearn.cluster import KMeans

        truth = self.run.truth[self.embedded_rows]
        n_clusters = min(self.run.n_classes, len(self.vectors))
        owners = KMeans(n_clusters, n_init=2, random_state=0).fit_predict(self.vectors)
        for class_id in np.unique(truth[truth >= 0]):
            inside = owners[truth == class_id]
            found[class_id] = np.bincount(inside).max() / len(inside)
        return found

    @cached_property
    def frequency(self) -> NDArray[np.float64]:
        """Return how often the search named each class as misleading, nan where it took no part."""
        found = np.full(self.run.n_classes, np.nan)
        for name, value in self.run.alignment.get("frequency", {}).items():
            found[self.run.names.index(name)] = value
        return found

    @property
    def mismatched(self) -> list[int]:
        """Return the classes whose names mislead, the most certain first."""
        ids = [self.run.names.index(name) for name in self.run.alignment.get("mismatched", [])]
        return sorted(ids, key=lambda c: (-self.frequency[c], c))
