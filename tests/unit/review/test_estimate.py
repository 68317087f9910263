"""The accuracy estimate: unbiased, with intervals that cover the truth, although the classifier changes meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from captune.core.arrays import Floats, Ints
from captune.review.estimate import AccuracyEstimate, describe_accuracy, draw_checks, estimate_accuracy, exact_interval


def make_predictions(accuracy: float, seed: int, n_images: int = 2000) -> tuple[Ints, Floats, Ints]:
    """Return predicted classes, confidences that tell something about being right, and true classes."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(10, size=n_images)
    ease = np.clip(generator.normal(accuracy, 0.3, n_images), 0, 1)
    is_right = generator.random(n_images) < ease
    predicted = np.where(is_right, truth, (truth + generator.integers(1, 10, size=n_images)) % 10)
    return predicted, ease.astype(np.float32), truth


@pytest.mark.parametrize("accuracy", [0.3, 0.7, 0.97])
@pytest.mark.parametrize("n_checks", [10, 50])
def test_intervals_cover_the_truth_and_the_mean_is_unbiased(accuracy: float, n_checks: int) -> None:
    covered, estimates = [], []
    for seed in range(400):
        predicted, confidence, truth = make_predictions(accuracy, seed % 4)
        rows = draw_checks(predicted, confidence, np.arange(len(truth)), 0, n_checks, seed)
        assert len(np.unique(rows)) == n_checks
        found = estimate_accuracy(predicted[rows], confidence[rows], truth[rows])
        assert found is not None
        true_accuracy = float(np.mean(predicted == truth))
        covered.append(found.low <= true_accuracy <= found.high)
        estimates.append(found.accuracy - true_accuracy)
    assert np.mean(covered) >= 0.93
    assert abs(np.mean(estimates)) < 3 * np.std(estimates) / 20 + 1e-3


def test_checks_spread_over_classes_better_than_a_random_sample() -> None:
    predicted, confidence, truth = make_predictions(0.6, 0)
    is_right = predicted == truth
    errors: list[list[float]] = [[], []]
    for seed in range(300):
        rows = draw_checks(predicted, confidence, np.arange(len(truth)), 0, 50, seed)
        simple = np.random.default_rng(seed).choice(len(truth), 50, replace=False)
        for kind, sample in enumerate((rows, simple)):
            errors[kind].append(float(is_right[sample].mean() - is_right.mean()))
    assert np.std(errors[0]) < np.std(errors[1])


def test_later_batches_continue_the_sequence() -> None:
    predicted, confidence, _ = make_predictions(0.6, 0)
    everything = np.arange(len(predicted))
    whole = draw_checks(predicted, confidence, everything, 0, 20, 3)
    assert draw_checks(predicted, confidence, everything, 8, 12, 3).tolist() == whole[8:].tolist()


def test_only_images_that_may_be_drawn_are_drawn() -> None:
    predicted, confidence, _ = make_predictions(0.6, 0, 30)
    some = np.arange(0, 30, 3)
    assert set(draw_checks(predicted, confidence, some, 0, 5, 0).tolist()) <= set(some.tolist())
    assert sorted(draw_checks(predicted, confidence, some, 0, 50, 0).tolist()) == some.tolist()
    assert len(draw_checks(predicted, confidence, some[:0], 0, 5, 0)) == 0


def test_the_interval_is_no_wider_than_that_of_a_simple_random_sample() -> None:
    predicted, confidence, truth = make_predictions(0.6, 0)
    for seed in range(50):
        rows = draw_checks(predicted, confidence, np.arange(len(truth)), 0, 50, seed)
        found = estimate_accuracy(predicted[rows], confidence[rows], truth[rows])
        assert found is not None
        low, high = exact_interval(found.accuracy, 50)
        assert found.high - found.low <= high - low + 1e-9


def test_the_exact_interval() -> None:
    assert exact_interval(0.0, 10) == pytest.approx((0.0, 0.3085), abs=1e-4)
    assert exact_interval(0.9, 10) == pytest.approx((0.5550, 0.9975), abs=1e-4)


def test_balanced_accuracy_is_the_mean_of_the_classes() -> None:
    truth = np.array([0] * 8 + [1] * 2)
    predicted = np.array([0] * 8 + [0] * 2)
    found = estimate_accuracy(predicted, np.ones(10, dtype=np.float32), truth)
    assert found is not None
    assert (found.accuracy, found.balanced_accuracy, found.n_correct, found.n_classes) == (0.8, 0.5, 8, 2)
    assert found.balanced_low < 0.5 < found.balanced_high


def test_the_words() -> None:
    found = AccuracyEstimate(40, 28, 0.7, 0.545, 0.82, 0.7, 0.5, 0.8, 5)
    assert found.sentence == "70 % right (55 to 82), from 40 checked images"
    assert describe_accuracy(found, "run") == describe_accuracy(found.as_dict(), "run") == f"{found.sentence}."
    words = describe_accuracy(None, "my run")
    assert "check 10 images" in words
    assert "captune estimate 'my run' --count 10" in words
