"""Every metric against a slow loop that reads like its definition."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captune.results import metrics


def slow_per_class(predicted: list[int], labels: list[int], n_classes: int) -> list[float]:
    result = []
    for c in range(n_classes):
        own = [p == c for p, y in zip(predicted, labels, strict=True) if y == c]
        result.append(sum(own) / len(own) if own else math.nan)
    return result


def slow_known_mean(values: list[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known)


def slow_lowest(values: list[float]) -> float:
    known = sorted(v for v in values if not math.isnan(v))[:5]
    return sum(known) / len(known)


def slow_harmonic(predicted: list[int], labels: list[int], seen: set[int]) -> float:
    scores = []
    for group_is_seen in (True, False):
        own = [p == y for p, y in zip(predicted, labels, strict=True) if (y in seen) == group_is_seen]
        if not own:
            return math.nan
        scores.append(sum(own) / len(own))
    return 0.0 if 0.0 in scores else 2 / (1 / scores[0] + 1 / scores[1])


def slow_imbalance(predicted: list[int], n_classes: int) -> float:
    counts = [predicted.count(c) for c in range(n_classes)]
    return max(counts) / (sum(counts) / n_classes)


def slow_ece(rows: np.ndarray, labels: list[int], bins: int = 15) -> float:
    edges = np.linspace(0.0, 1.0, bins + 1)
    total = 0.0
    for low, high in pairwise(edges):
        inside = [i for i, row in enumerate(rows) if low < float(row.max()) <= high]
        if inside:
            right = sum(int(rows[i].argmax()) == labels[i] for i in inside) / len(inside)
            sure = sum(float(rows[i].max()) for i in inside) / len(inside)
            total += len(inside) / len(labels) * abs(right - sure)
    return total


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 12), st.sampled_from([0.3, 1.0, 5.0]))
def test_metrics_equal_their_twins(seed: int, n_images: int, n_classes: int, spread: float) -> None:
    generator = np.random.default_rng(seed)
    scores = np.exp(spread * generator.standard_normal((n_images, n_classes)))
    rows = (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)
    labels = generator.integers(0, n_classes, n_images)
    seen = np.flatnonzero(generator.random(n_classes) < 0.6)
    predicted = rows.argmax(axis=1)
    slow_input = (predicted.tolist(), labels.tolist())

    summary = metrics.summarize(rows, labels, n_classes, seen=seen)

    per_class = slow_per_class(*slow_input, n_classes)
    assert [math.nan if v is None else v for v in summary.per_class_accuracy] == pytest.approx(per_class, nan_ok=True)
    assert summary.accuracy == pytest.approx(sum(p == y for p, y in zip(*slow_input, strict=True)) / n_images)
    assert summary.balanced_accuracy == pytest.approx(slow_known_mean(per_class))
    assert summary.lowest_five == pytest.approx(slow_lowest(per_class))
    harmonic = math.nan if summary.harmonic_mean is None else summary.harmonic_mean
    assert harmonic == pytest.approx(slow_harmonic(*slow_input, set(seen.tolist())), nan_ok=True)
    assert list(summary.never_predicted) == [c for c in range(n_classes) if c not in slow_input[0]]
    assert summary.predicted_imbalance == pytest.approx(slow_imbalance(slow_input[0], n_classes))
    assert summary.ece == pytest.approx(slow_ece(rows, slow_input[1]), abs=1e-9)
