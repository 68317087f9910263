"""What labeled images say about their classes."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import unit_rows
from captune.mixture.label_evidence import MANY_LABELS, MOST_NEIGHBORS, NEIGHBOR_SHARE, LabelEvidence, gather_evidence

WIDTH = 8


def gather(per_class: int, allowed: tuple[int, ...] = (0, 1)) -> tuple[LabelEvidence, np.ndarray, np.ndarray]:
    """Return the evidence of one label of class 0, the labeled image, and its unlabeled images, nearest first."""
    generator = np.random.default_rng(0)
    images = unit_rows(generator.normal(size=(2 * per_class, WIDTH)).astype(np.float32))
    texts = np.eye(2, WIDTH, dtype=np.float32)
    labeled = unit_rows(generator.normal(size=(1, WIDTH)).astype(np.float32))
    is_allowed = np.isin(np.arange(2), allowed)
    center = np.zeros(WIDTH, dtype=np.float32)
    found = gather_evidence(images, center, 100 * texts, labeled, np.array([0]), is_allowed)
    return found, labeled[0], images[np.argsort(-(images @ labeled[0]))]


def test_a_labeled_image_is_averaged_with_half_of_the_images_that_a_class_has() -> None:
    for per_class, k in ((6, 3), (100, MOST_NEIGHBORS)):
        found, labeled, nearest = gather(per_class)
        expected = labeled + NEIGHBOR_SHARE * (nearest[:k].mean(axis=0) - labeled)
        assert np.allclose(found.sums[0] / found.counts[0], expected, atol=1e-6)
    found, labeled, _ = gather(1)  # no image to spare
    assert np.allclose(found.sums[0] / found.counts[0], labeled, atol=1e-6)


def test_a_complete_class_is_not_averaged_with_images_of_others() -> None:
    found, labeled, _ = gather(6, allowed=(1,))
    assert np.allclose(found.sums[0], labeled, atol=1e-6)


def test_a_text_that_labels_contradict_is_trusted_less() -> None:
    texts, images = np.eye(3, WIDTH, dtype=np.float32), np.empty((0, WIDTH), dtype=np.float32)
    labeled, labels = texts[[0, 0, 2]], np.array([0, 0, 1])  # class 1 looks like the text of class 2
    found = gather_evidence(images, images.sum(axis=0), 100 * texts, labeled, labels, np.ones(3, dtype=bool))
    assert found.trust[0] > found.trust[1]
    assert found.trust[2] == 1.0  # no label says anything
    assert found.counts[2] == 0
    assert 0.9 * 2 < found.counts[0] <= 2


def test_a_label_is_doubted_if_the_others_confirm_the_texts() -> None:
    texts, images = np.eye(4, WIDTH, dtype=np.float32), np.empty((0, WIDTH), dtype=np.float32)
    everything, center = np.ones(4, dtype=bool), images.sum(axis=0)
    seen, said = [0, 1, 2, 3] * 5 + [3], [0, 1, 2, 3] * 5 + [2]
    confirmed = gather_evidence(images, center, 100 * texts, texts[seen], np.array(said), everything)
    assert confirmed.counts[0] > 4.5
    assert confirmed.counts[2] < 5.2  # the last one looks like class 3
    misled = gather_evidence(images, center, 100 * texts, texts[[1, 2, 3, 0]], np.array([0, 1, 2, 3]), everything)
    assert misled.counts.min() > 0.85  # the texts say nothing against any of them
    assert misled.contradiction > 0.9
    assert confirmed.contradiction < 0.1


def test_many_labels_of_a_class_are_not_doubted() -> None:
    texts, images = np.eye(2, WIDTH, dtype=np.float32), np.empty((0, WIDTH), dtype=np.float32)
    labels = np.zeros(MANY_LABELS, dtype=np.int64)
    found = gather_evidence(
        images, images.sum(axis=0), 100 * texts, texts[np.ones_like(labels)], labels, np.ones(2, dtype=bool)
    )
    assert found.counts.tolist() == [MANY_LABELS, 0]
