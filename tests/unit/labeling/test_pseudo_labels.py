"""Pseudo-labels are checked when built and keep where each label came from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from captune.core.errors import InputError
from captune.labeling.pseudo_labels import PseudoLabels, Source


def some(
    images: list[int], labels: list[int], source: int = Source.MODEL, candidates: Any = None, round_number: int = 0
) -> PseudoLabels:
    confidence = np.linspace(0.5, 0.9, len(images)).astype(np.float32)
    ids = (np.array(values, dtype=np.int64) for values in (images, labels))
    made = PseudoLabels.create(*ids, confidence, 4, round_number)
    return replace(made, source=np.full_like(made.source, source), candidates=candidates)


def test_counts_and_precision() -> None:
    labels = some([5, 0, 3], [1, 1, 2])
    truth = np.array([1, 9, 9, 0, 9, 1])
    assert labels.counts().tolist() == [0, 2, 1, 0]
    assert labels.precision(truth) == pytest.approx(2 / 3)
    assert math.isnan(some([], []).precision(truth))


def test_subset_by_mask_and_by_position() -> None:
    labels = some([5, 0, 3], [1, 1, 2], candidates=np.ones((3, 4), dtype=bool))
    assert labels.subset(labels.labels == 1).image_index.tolist() == [5, 0]
    part = labels.subset(np.array([2]))
    assert (part.labels.tolist(), part.candidates.shape) == ([2], (1, 4))  # type: ignore[union-attr]


def test_extend_keeps_its_own_labels() -> None:
    old = some([4, 1], [0, 1], source=Source.NAME)
    new = some([2, 4], [3, 3], round_number=5)
    extended = old.extend(new)
    assert extended.image_index.tolist() == [1, 2, 4]
    assert extended.labels.tolist() == [1, 3, 0]
    assert extended.round.tolist() == [0, 5, 0]
    assert [Source(s) for s in extended.source] == [Source.NAME, Source.MODEL, Source.NAME]


def test_extend_with_nothing_and_of_other_classes() -> None:
    labels = some([4, 1], [0, 1])
    assert len(labels.extend(some([], []))) == len(some([], []).extend(labels)) == 2
    with pytest.raises(InputError, match="Expected pseudo-labels of 4 classes, got 3"):
        labels.extend(replace(some([], []), n_classes=3))


def test_candidates_stay_only_when_both_have_them() -> None:
    with_candidates = some([0], [0], candidates=np.ones((1, 4), dtype=bool))
    assert with_candidates.extend(some([1], [0])).candidates is None
    both = with_candidates.extend(some([1], [1], candidates=np.eye(4, dtype=bool)[[1]]))
    assert both.candidates is not None
    assert both.candidates.sum(axis=1).tolist() == [4, 1]


def test_reindexed_and_stamped() -> None:
    labels = some([0, 2], [1, 2]).reindexed(np.array([10, 11, 12])).stamped(3, Source.DESCRIPTION)
    assert labels.image_index.tolist() == [10, 12]
    assert labels.round.tolist() == [3, 3]
    assert set(labels.source.tolist()) == {Source.DESCRIPTION}


@pytest.mark.parametrize(
    ("images", "labels", "more", "message"),
    [
        ([1, 1], [0, 0], {}, "each image once"),
        ([0, 1], [0, 4], {}, r"labels: expected ids in 0..3, got 0..4"),
        ([-1, 1], [0, 0], {}, "positions from 0"),
        ([0, 1], [0], {}, r"labels: expected shape \(2,\), got \(1,\)"),
        ([0], [0], {"candidates": np.ones((1, 3), dtype=bool)}, r"expected shape \(1, 4\), got \(1, 3\)"),
        ([0], [0], {"candidates": np.zeros((1, 4), dtype=bool)}, "among its candidates"),
        ([0], [0], {"source": 7}, r"source: expected ids in 0..2, got 7..7"),
    ],
)
def test_wrong_pseudo_labels_are_refused(
    images: list[int], labels: list[int], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        some(images, labels, **more)


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(InputError, match=r"(?s)labels.*once.*finite"):
        PseudoLabels.create(np.array([0, 0]), np.array([0, 9]), np.array([np.nan, 1], dtype=np.float32), 3)


@pytest.mark.parametrize("candidates", [None, np.ones((3, 4), dtype=bool)])
def test_arrays_bring_everything_back(candidates: np.ndarray | None) -> None:
    labels = some([5, 0, 3], [1, 1, 2], round_number=4, source=Source.NAME, candidates=candidates)
    again = PseudoLabels(n_classes=4, **labels.arrays())
    assert again.arrays().keys() == labels.arrays().keys()
    assert all(np.array_equal(again.arrays()[name], array) for name, array in labels.arrays().items())
    assert ("candidates" in labels.arrays()) == (candidates is not None)
