"""Metrics of a cell's classifiers on its test images and its pool, with the labels that the method never saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captune.benchmark.splits import Split
from captune.concepts.groups import groups_of_predictions
from captune.core import runtime
from captune.core.arrays import Floats, Ints
from captune.core.settings import WHERE, RunSettings
from captune.embeddings.cache import EmbeddingCache, default_folder
from captune.results.classifier import Classifier, predict_collection
from captune.results.metrics import Metrics, expected_calibration_error, summarize
from captune.results.run import Run


def open_engine(settings: Mapping[str, Any]) -> tuple[runtime.Runtime, EmbeddingCache]:
    """Return the devices and the cache that these settings name."""
    values = {**dataclasses.asdict(RunSettings()), **settings}
    workers = None if values["workers"] < 0 else values["workers"]
    engine = runtime.start(seed=values["seed"], workers=workers, **{name: values[name] for name in WHERE})
    return engine, EmbeddingCache(Path(values["cache"] or default_folder()))


class Evaluated(NamedTuple):
    """Metrics on the unlabeled images (pool) and the test images, predicted over all classes, and confused groups."""

    pool: Metrics
    test: Metrics
    groups: list[dict[str, Any]]
    n_unreadable: int


def evaluate(run: Run, classifier: Classifier, split: Split) -> Evaluated:
    """Return the metrics of a classifier of a run."""
    engine, cache = open_engine(run.settings)
    size, truth, n_classes = int(run.settings["batch_size"]), split.truth, len(classifier.names)
    with engine.together():
        pool, _ = predict_collection(classifier, split.task.unlabeled, cache, engine, size)
        test, skipped = predict_collection(classifier, split.test, cache, engine, size)
    seen = truth.seen_classes if truth.is_transductive else None
    labels = truth.test_labels[test.image_index]
    return Evaluated(
        summarize(pool.probabilities, truth.unlabeled_labels[pool.image_index], n_classes),
        summarize(test.probabilities, labels, n_classes, seen),
        _group_numbers(run, test.probabilities, labels),
        len(skipped),
    )


def _group_numbers(run: Run, probabilities: Floats, labels: Ints) -> list[dict[str, Any]]:
    """Return the classes that zero-shot confuses in the pool, and calibration and accuracy of their test images."""
    arrays = run.evidence.arrays if run.evidence else {}
    if "before" not in arrays:
        return []
    predicted = np.asarray(arrays["before_labels"][arrays["embedded_rows"]], dtype=np.int64)
    vectors = np.asarray(arrays["vectors"], dtype=np.float32)
    found = []
    for group in groups_of_predictions(vectors, predicted, arrays["class_vectors"], arrays["before"]):
        inside = np.isin(labels, group.classes)
        if inside.any():
            own, truth = probabilities[inside], labels[inside]
            numbers = {
                "images": len(truth),
                "accuracy": float(np.mean(own.argmax(axis=1) == truth)),
                "ece": expected_calibration_error(own, truth),
            }
            found.append({"classes": list(group.classes), **numbers})
    return found
