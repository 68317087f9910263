"""Metrics on cases small enough to compute by hand."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from captune.results import metrics

LABELS = np.array([0, 0, 0, 0, 1, 1, 2, 2])
PREDICTED = np.array([0, 0, 0, 1, 1, 0, 0, 0])  # 3/4, 1/2, 0/2; class 3 has no image


def one_hot(predicted: np.ndarray, n_classes: int, top: float = 1.0) -> np.ndarray:
    rest = (1.0 - top) / (n_classes - 1)
    rows = np.full((len(predicted), n_classes), rest, dtype=np.float32)
    rows[np.arange(len(predicted)), predicted] = top
    return rows


def test_accuracies_by_hand() -> None:
    summary = metrics.summarize(one_hot(PREDICTED, 4), LABELS, 4)
    assert summary.accuracy == 0.5
    assert summary.per_class_accuracy == (0.75, 0.5, 0.0, None)
    assert summary.balanced_accuracy == pytest.approx(1.25 / 3)


def test_the_lowest_five_are_the_lowest_known_classes() -> None:
    labels = np.repeat(np.arange(7), 10)
    right = np.array([9, 1, 3, 5, 2, 4, 8])  # of ten images of each class; class 7 has none
    predicted = np.where(np.tile(np.arange(10), 7) < right[labels], labels, 7)
    assert metrics.summarize(one_hot(predicted, 8), labels, 8).lowest_five == pytest.approx(0.3)
    assert metrics.summarize(one_hot(predicted[:20], 8), labels[:20], 8).lowest_five == pytest.approx(0.5)


def test_balance_by_hand() -> None:
    summary = metrics.summarize(one_hot(PREDICTED, 4), LABELS, 4)
    assert summary.predicted_counts == (6, 2, 0, 0)
    assert summary.never_predicted == (2, 3)
    for predicted, imbalance in ((PREDICTED, 3.0), (np.array([0, 1, 2, 3]), 1.0), (np.array([2, 2]), 4.0)):
        summary = metrics.summarize(one_hot(predicted, 4), predicted, 4)
        assert summary.predicted_imbalance == imbalance


def test_seen_and_unseen_are_predicted_over_all_classes() -> None:
    summary = metrics.summarize(one_hot(PREDICTED, 4), LABELS, 4, seen=[0])
    assert (summary.seen_accuracy, summary.unseen_accuracy) == (0.75, 0.25)
    assert summary.harmonic_mean == pytest.approx(0.375)
    wrong = metrics.summarize(one_hot((LABELS + 1) % 4, 4), LABELS, 4, seen=[0])
    assert wrong.harmonic_mean == 0.0


def test_five_thousand_classes_stay_fast() -> None:
    labels = np.arange(5_000)
    began = time.process_time()
    summary = metrics.summarize(one_hot(labels, 5_000), labels, 5_000)
    assert summary.balanced_accuracy == 1.0
    assert time.process_time() - began < 5


def test_ece_by_hand() -> None:
    # Four images at confidence 0.9 of which two are right: |0.5 - 0.9|; one at 1.0 and right: 0.
    rows = np.vstack([one_hot(np.array([0, 0, 1, 1]), 2, 0.9), one_hot(np.array([0]), 2)])
    labels = np.array([0, 0, 0, 0, 0])
    assert metrics.expected_calibration_error(rows, labels) == pytest.approx(0.4 * 4 / 5, abs=1e-6)


def test_ece_bins_are_closed_above() -> None:
    # 0.625 is an edge of eight bins; it belongs with 0.6 to (0.5, 0.625], where the two gaps partly cancel.
    rows = np.array([[0.625, 0.375], [0.6, 0.4]], dtype=np.float32)
    assert metrics.expected_calibration_error(rows, np.array([0, 1]), bins=8) == pytest.approx(0.1125)


def test_summary_is_strict_json() -> None:
    summary = metrics.summarize(one_hot(PREDICTED, 4), LABELS, 4, seen=[0])
    record = json.loads(json.dumps(summary.as_dict(), allow_nan=False))
    assert record["per_class_accuracy"] == [0.75, 0.5, 0.0, None]
    assert record["never_predicted"] == [2, 3]
    assert record["harmonic_mean"] == pytest.approx(0.375)
    assert (record["n_images"], record["accuracy"], record["ece"]) == (8, 0.5, 0.5)


def test_summary_without_one_of_the_groups_has_no_harmonic_mean() -> None:
    summary = metrics.summarize(one_hot(PREDICTED, 4), LABELS, 4, seen=[0, 1, 2])
    assert summary.unseen_accuracy is None
    assert summary.harmonic_mean is None
    assert metrics.summarize(one_hot(PREDICTED, 4), LABELS, 4).seen_accuracy is None
