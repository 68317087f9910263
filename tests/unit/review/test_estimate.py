"""The accuracy estimate: unbiased, with intervals that cover the truth, although the classifier changes meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from captune.core.arrays import Floats, Ints
from captune.review.estimate import (
    AccuracyEstimate,
    describe_accuracy,
    draw_checks,
    estimate_accuracy,
    exact_interval,
    random_numbers,
)


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
    images = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32)
    worlds = [make_predictions(accuracy, seed) for seed in range(4)]
    for seed in range(400):
        predicted, _, truth = worlds[seed % 4]
        rows = draw_checks(random_numbers(images, seed), np.ones(2000, dtype=np.bool_), n_checks)
        assert len(np.unique(rows)) == n_checks
        found = estimate_accuracy(predicted[rows], truth[rows])
        true_accuracy = float(np.mean(predicted == truth))
        covered.append(found.low <= true_accuracy <= found.high)
        estimates.append(found.accuracy - true_accuracy)
    assert np.mean(covered) >= 0.93
    assert abs(np.mean(estimates)) < 3 * np.std(estimates) / 20 + 1e-3


def test_an_image_keeps_its_number_when_others_are_added() -> None:
    more = np.random.default_rng(0).normal(size=(70, 4)).astype(np.float32)
    np.testing.assert_array_equal(random_numbers(more, 7)[20:], random_numbers(more[20:], 7))
    assert not np.array_equal(random_numbers(more, 8), random_numbers(more, 7))


def test_copies_of_an_image_have_different_numbers_that_are_the_same_in_any_order() -> None:
    images = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)[np.arange(30) % 10]
    numbers, order = random_numbers(images, 7), np.random.default_rng(1).permutation(30)
    assert len(np.unique(numbers)) == 30
    for image in range(10):
        again = random_numbers(images[order], 7)[order % 10 == image]
        assert sorted(again.tolist()) == sorted(numbers[np.arange(30) % 10 == image].tolist())


def test_later_batches_continue_the_sequence() -> None:
    numbers = random_numbers(np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32), 3)
    is_free = np.ones(100, dtype=np.bool_)
    whole = draw_checks(numbers, is_free, 20)
    is_free[whole[:8]] = False
    assert draw_checks(numbers, is_free, 12).tolist() == whole[8:].tolist()
    assert len(draw_checks(numbers, is_free, 500)) == 92
    assert len(draw_checks(numbers, ~is_free & False, 5)) == 0


def test_the_exact_interval() -> None:
    assert exact_interval(0.0, 10) == pytest.approx((0.0, 0.3085), abs=1e-4)
    assert exact_interval(0.9, 10) == pytest.approx((0.5550, 0.9975), abs=1e-4)


def test_balanced_accuracy_is_the_mean_of_the_classes() -> None:
    truth = np.array([0] * 8 + [1] * 2)
    predicted = np.array([0] * 8 + [0] * 2)
    found = estimate_accuracy(predicted, truth)
    assert (found.accuracy, found.balanced_accuracy, found.n_correct, found.n_classes) == (0.8, 0.5, 8, 2)
    assert found.balanced_low < 0.5 < found.balanced_high


def test_without_checks_the_estimate_says_so() -> None:
    found = estimate_accuracy(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    assert not found
    assert found.as_dict()["accuracy"] is None
    assert "not verified" in found.sentence


def test_the_words() -> None:
    found = AccuracyEstimate(40, 28, 0.7, 0.545, 0.82, 0.7, 0.5, 0.8, 5)
    assert found.sentence == "70% right (55 to 82), from 40 checked images"
    assert describe_accuracy(found, "run") == describe_accuracy(found.as_dict(), "run") == f"{found.sentence}."
    words = describe_accuracy(None, "my run")
    assert "check 10 images" in words
    assert "captune estimate 'my run' --count 10" in words
