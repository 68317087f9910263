"""Properties that every selection keeps, whatever the scores."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from captune.core.errors import InputError
from captune.labeling import selection


def distinct_scores(seed: int, n_images: int, n_classes: int) -> np.ndarray:
    values = np.random.default_rng(seed).permutation(n_images * n_classes).astype(np.float32)
    return ((values + 1) / (values.size + 1)).reshape(n_images, n_classes)


def test_the_most_confident_class_wins_and_the_place_goes_to_the_next() -> None:
    scores = np.array([[0.9, 0.8], [0.2, 0.7], [0.6, 0.1]], dtype=np.float32)
    chosen = selection.top_k_per_class(scores, 1)
    assert chosen.image_index.tolist() == [0, 1]
    assert chosen.labels.tolist() == [0, 1]
    assert chosen.counts().tolist() == [1, 1]


def test_a_class_that_nothing_fits_still_gets_its_best_images() -> None:
    scores = np.array([[0.9, 0.1], [0.8, 0.05], [0.7, 0.02]], dtype=np.float32)
    assert selection.top_k_per_class(scores, 1).labels.tolist() == [0, 1]
    assert selection.top_k_per_class(scores, 1, predicted_only=True).labels.tolist() == [0]


def test_ties_go_to_the_first_image_and_the_first_class() -> None:
    chosen = selection.top_k_per_class(np.ones((5, 2), dtype=np.float32), 2)
    assert chosen.image_index.tolist() == [0, 1, 2, 3]
    assert chosen.labels.tolist() == [0, 0, 1, 1]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(2, 7), st.integers(1, 6), st.booleans())
def test_quotas_hold_and_nothing_better_is_left(
    seed: int, n_images: int, n_classes: int, k: int, predicted_only: bool
) -> None:
    scores = distinct_scores(seed, n_images, n_classes)
    allowed = np.arange(0, n_classes, 2)
    chosen = selection.top_k_per_class(scores, k, allowed, predicted_only)
    assert chosen.counts().max() <= k
    assert set(chosen.labels.tolist()) <= set(allowed.tolist())
    if not predicted_only:
        assert len(chosen) == min(n_images, k * len(allowed))
        held = np.zeros(n_images)
        held[chosen.image_index] = chosen.confidence
        for c in allowed:  # stable: no image and class would both rather have each other
            own = chosen.confidence[chosen.labels == c]
            worst = own.min() if len(own) == k else -1.0
            assert not ((scores[:, c] > held) & (scores[:, c] > worst)).any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(2, 6), st.integers(1, 6))
def test_the_order_of_images_and_classes_does_not_matter(seed: int, n_images: int, n_classes: int, k: int) -> None:
    scores = distinct_scores(seed, n_images, n_classes)
    generator = np.random.default_rng(seed)
    images, classes = generator.permutation(n_images), generator.permutation(n_classes)
    straight = selection.top_k_per_class(scores, k)
    mixed = selection.top_k_per_class(scores[images][:, classes], k).reindexed(images)
    expected = set(zip(straight.image_index.tolist(), straight.labels.tolist(), strict=True))
    assert set(zip(mixed.image_index.tolist(), classes[mixed.labels].tolist(), strict=True)) == expected

    rows = scores / scores.sum(axis=1, keepdims=True)
    assume(len(np.unique(rows)) == rows.size)  # ties go to the image that comes first, so there order matters
    candidates = selection.candidate_sets(rows, 0.8, 0.5)
    np.testing.assert_array_equal(selection.candidate_sets(rows[images], 0.8, 0.5), candidates[images])
    pools = selection.balanced_pools(rows, candidates, k)
    mixed = selection.balanced_pools(rows[images], candidates[images], k).reindexed(images)
    assert set(mixed.image_index.tolist()) == set(pools.image_index.tolist())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(2, 6), st.integers(1, 6))
def test_pools_hold_only_candidates(seed: int, n_images: int, n_classes: int, k: int) -> None:
    scores = distinct_scores(seed, n_images, n_classes)
    rows = scores / scores.sum(axis=1, keepdims=True)
    allowed = [0, 1]
    candidates = selection.candidate_sets(rows, 0.9, 0.6, allowed)
    pools = selection.balanced_pools(rows, candidates, k)
    assert not candidates[:, 2:].any()
    assert pools.candidates is not None
    assert pools.candidates[np.arange(len(pools)), pools.labels].all()
    assert pools.counts().max(initial=0) <= k


def test_quotas_may_differ_by_class() -> None:
    chosen = selection.top_k_per_class(distinct_scores(0, 20, 3), np.array([0, 2, 5]))
    assert chosen.counts().tolist() == [0, 2, 5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: selection.top_k_per_class(s[0], 1), r"expected shape \(images, classes\), got \(3,\)"),
        (lambda s: selection.top_k_per_class(s * np.nan, 1), "got nan"),
        (lambda s: selection.top_k_per_class(s, -1), "k: expected 0 or more"),
        (lambda s: selection.top_k_per_class(s, 1, allowed=[]), "at least one class id"),
        (lambda s: selection.top_k_per_class(s, 1, allowed=[3]), r"0..2, got 3..3"),
        (lambda s: selection.candidate_sets(s, 1.5, 0.5), "alpha: expected a number from 0 to 1"),
    ],
)
def test_wrong_input_says_what_was_expected(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(np.ones((4, 3), dtype=np.float32))  # type: ignore[operator]


def test_large_folders_take_no_loop_over_images() -> None:
    scores = np.random.default_rng(0).random((50_000, 100), dtype=np.float32)
    start = time.perf_counter()
    assert len(selection.top_k_per_class(scores, 500)) == 50_000
    assert len(selection.top_k_per_class(scores, 16)) == 1_600
    assert time.perf_counter() - start < 20  # about half a second; a loop over images takes minutes


def test_no_images_give_no_labels() -> None:
    nothing = np.zeros((0, 3), dtype=np.float32)
    candidates = selection.candidate_sets(nothing, 0.9, 0.5)
    assert candidates.shape == (0, 3)
    assert len(selection.balanced_pools(nothing, candidates, 2)) == 0
    assert len(selection.top_k_per_class(nothing, 2, predicted_only=True)) == 0
