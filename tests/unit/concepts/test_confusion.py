"""The margin at its edges: no confident image, labeled classes, other logit scales."""

from __future__ import annotations

import numpy as np
import pytest

from captune.concepts import confusion
from captune.core.arrays import unit_rows
from captune.core.errors import InputError

SIMILARITY = np.full((4, 4), 0.5, dtype=np.float32)


def test_no_confident_image_means_no_margin() -> None:
    counts = confusion.confident_counts(np.full((5, 4), 0.25, dtype=np.float32), 0.85)
    made = confusion.confusion_margin(SIMILARITY, counts)
    assert not counts.any()
    assert not made.matrix.any()
    assert made.imbalance == 0.0


def test_rows_that_are_not_read_are_left_out() -> None:
    prototypes, texts = (unit_rows(np.random.default_rng(i).normal(size=(9, 5))) for i in range(2))
    full, some = confusion.class_similarity(prototypes, texts), np.array([0, 3, 8])
    np.testing.assert_array_equal(confusion.class_similarity(prototypes, texts, np.arange(9)), full)
    found = confusion.class_similarity(prototypes, texts, some)
    np.testing.assert_allclose(found[some], full[some], atol=1e-6)
    assert not np.delete(found, some, axis=0).any()


def test_balanced_counts_mean_no_margin() -> None:
    assert not confusion.confusion_margin(SIMILARITY, np.array([7, 7, 7, 7])).matrix.any()


def test_classes_with_labels_have_no_margin_and_set_no_standard() -> None:
    # The labeled class 0 takes most predictions; the others are still compared among themselves.
    for first in (90, 0):
        made = confusion.confusion_margin(SIMILARITY, np.array([first, 10, 5, 0]), labeled=np.array([0]))
        assert made.neglect.tolist() == [0.0, 0.0, 0.5, 1.0]
        assert not made.matrix[0].any()
        assert made.matrix[3, :3].tolist() == [6.0, 6.0, 6.0]
    assert not confusion.confusion_margin(SIMILARITY[:2, :2], np.array([3, 0]), labeled=[0, 1]).matrix.any()


def test_the_margin_follows_the_logit_scale() -> None:
    counts = np.array([4, 2, 0, 4])
    full = confusion.confusion_margin(SIMILARITY, counts).matrix
    assert full.max() == pytest.approx(6.0)
    scaled = confusion.confusion_margin(SIMILARITY, counts, logit_scale=50.0).matrix
    np.testing.assert_allclose(scaled, full / 2)
    np.testing.assert_allclose(confusion.confusion_margin(SIMILARITY, counts, logit_scale=100.0).matrix, full)


def test_the_more_a_class_is_passed_over_the_larger_its_row() -> None:
    matrix = confusion.confusion_margin(SIMILARITY, np.array([10, 6, 3, 0])).matrix
    assert np.all(np.diff(matrix.sum(axis=1)) > 0)
    assert not np.diag(matrix).any()


def test_prototypes_are_means_and_fall_back_on_texts() -> None:
    images = np.array([[1, 0], [0, 1], [0, 1]], dtype=np.float32)
    texts = np.array([[0.6, 0.8], [1, 0], [-1, 0]], dtype=np.float32)
    prototypes = confusion.class_prototypes(images, np.array([0, 0, 1]), texts)
    np.testing.assert_allclose(prototypes, [[0.7071, 0.7071], [0, 1], [-1, 0]], atol=1e-4)
    none = confusion.class_prototypes(images[:0], np.zeros(0, dtype=np.int64), texts)
    np.testing.assert_allclose(none, texts, atol=1e-6)


def test_similarity_is_the_larger_of_images_and_texts() -> None:
    images = unit_rows(np.array([[1, 0], [0, 1]], dtype=np.float32))
    texts = unit_rows(np.array([[1, 1], [1, 1]], dtype=np.float32))
    np.testing.assert_allclose(confusion.class_similarity(images, texts), np.ones((2, 2)), atol=1e-6)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(InputError, match=r"similarity: expected shape \(3, 3\), got \(4, 4\)"):
        confusion.confusion_margin(SIMILARITY, np.array([1, 2, 3]))
