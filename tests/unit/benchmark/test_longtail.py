"""The seeded long tail: sizes by the rule, the seed draws the order, and steeper tails are parts of flatter ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from captune.benchmark.longtail import long_tail
from captune.core.errors import InputError

LABELS = np.repeat(np.arange(5), 80)


def test_sizes_follow_the_rule() -> None:
    kept = long_tail(LABELS, 16, seed=3)
    sizes = sorted(np.bincount(LABELS[kept]).tolist(), reverse=True)
    assert sizes == [80, 40, 20, 10, 5]  # 80 * 16^(-i/4)


def test_the_seed_draws_the_order_of_classes_and_their_images() -> None:
    assert np.array_equal(long_tail(LABELS, 10, seed=1), long_tail(LABELS, 10, seed=1))
    counts = {tuple(np.bincount(LABELS[long_tail(LABELS, 10, seed=s)]).tolist()) for s in range(6)}
    assert len(counts) > 1
    first = [long_tail(LABELS, 10, seed=s) for s in range(2)]
    assert not np.array_equal(*first)


def test_a_ratio_of_one_keeps_all_and_less_is_refused() -> None:
    assert np.array_equal(long_tail(LABELS, 1), np.arange(len(LABELS)))
    assert long_tail(np.zeros(0, dtype=np.int64), 10).size == 0
    for wrong in (0.5, float("nan")):
        with pytest.raises(InputError, match="ratio: expected 1 or more"):
            long_tail(LABELS, wrong)


def test_a_small_class_gives_what_it_has() -> None:
    labels = np.array([0] * 30 + [1] * 2 + [7] * 30)
    kept = long_tail(labels, 1.5, seed=0)
    assert (labels[kept] == 1).sum() == 2
    assert len(long_tail(np.array([4, 4, 4]), 50)) == 3  # a single class is the largest


@given(st.lists(st.integers(0, 6), min_size=1, max_size=120), st.floats(1, 200), st.integers(0, 50))
def test_every_class_stays_and_steeper_tails_are_parts(labels: list[int], ratio: float, seed: int) -> None:
    truth = np.array(labels)
    kept, steeper = long_tail(truth, ratio, seed), long_tail(truth, ratio * 2, seed)
    assert len(np.unique(kept)) == len(kept)
    assert (np.diff(kept) > 0).all()
    assert set(truth[kept]) == set(labels)
    assert set(steeper) <= set(kept)
