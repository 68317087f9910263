"""The growth of D_PL, step by step against lists of (confidence, image) for each class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captune.labeling.pseudo_labels import PseudoLabels
from captune.labeling.selection import add_confident, released_size, rotate, top_k_per_class

Lists = dict[int, list[tuple[float, int]]]


def as_lists(labels: PseudoLabels, allowed: list[int]) -> Lists:
    """Return the entries of each class, the most confident first."""
    lists: Lists = {c: [] for c in allowed}
    for image, label, confidence in zip(labels.image_index, labels.labels, labels.confidence, strict=True):
        lists[int(label)].append((float(confidence), int(image)))
    return {c: sorted(own, key=lambda entry: (-entry[0], entry[1])) for c, own in lists.items()}


def predicted(row: np.ndarray, allowed: list[int]) -> int:
    return max(allowed, key=lambda c: (row[c], -c))


def slow_rotation(lists: Lists, images: list[int], rows: np.ndarray, k: int, tau: float) -> Lists:
    """Take confident images that no list has, best first, then go on with the old list from its beginning."""
    known = {image for own in lists.values() for _, image in own}
    new: Lists = {c: [] for c in lists}
    for image, row in zip(images, rows, strict=True):
        c = predicted(row, list(lists))
        if image not in known and row[c] >= tau:
            new[c].append((float(row[c]), image))
    result = {}
    for c, old in lists.items():
        best = sorted(new[c], key=lambda entry: (-entry[0], entry[1]))[:k]
        result[c] = best + old[: k - len(best)]
    return result


def random_rows(generator: np.random.Generator, n_images: int, n_classes: int, allowed: list[int]) -> np.ndarray:
    rows = np.zeros((n_images, n_classes), dtype=np.float32)
    rows[:, allowed] = generator.dirichlet(np.full(len(allowed), 0.4), n_images)
    return rows


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_images=st.integers(3, 60),
    n_classes=st.integers(2, 5),
    tau=st.sampled_from([0.0, 0.5, 0.85]),
    restricted=st.booleans(),
)
def test_rotation_equals_the_lists_over_many_updates(
    seed: int, n_images: int, n_classes: int, tau: float, restricted: bool
) -> None:
    generator = np.random.default_rng(seed)
    allowed = [0, n_classes - 1] if restricted else list(range(n_classes))
    k, epochs = 3, 10
    current = top_k_per_class(random_rows(generator, n_images, n_classes, allowed), k, allowed)
    lists = as_lists(current, allowed)
    for epoch in range(0, epochs, 2):  # the authors' code updates after epochs 0, 5, 10, ...
        size = released_size(k, epoch, epochs, n_images, len(allowed))
        images = np.sort(generator.permutation(n_images)[: max(2, n_images // 2)])
        rows = random_rows(generator, len(images), n_classes, allowed)
        current = rotate(current, images, rows, size, tau, allowed, epoch + 1)
        lists = slow_rotation(lists, images.tolist(), rows, size, tau)
        expected = {image: c for c, own in lists.items() for _, image in own}
        assert dict(zip(current.image_index.tolist(), current.labels.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, 16), (5, 16 + int(96 * 5 / 35)), (20, 16 + int(96 * 20 / 35)), (35, 112), (45, 112)],
)
def test_the_size_grows_in_a_straight_line_to_a_share(epoch: int, expected: int) -> None:
    assert released_size(16, epoch, 50, 45 * 140, 45) == expected  # 0.8 * 140 = 112


def test_the_size_is_bounded() -> None:
    assert released_size(16, 50, 50, 27_000, 10) == 1000
    assert released_size(16, 50, 50, 6667, 100, share=0.6) == 39
    assert released_size(16, 50, 50, 100, 10) == 8  # fewer images than k a class: it shrinks
    assert released_size(16, 50, 50, 3, 10) == 1


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n_images=st.integers(2, 40), n_new=st.integers(0, 4))
def test_growth_of_the_paper_equals_the_loop(seed: int, n_images: int, n_new: int) -> None:
    generator = np.random.default_rng(seed)
    allowed = [0, 2, 3]
    current = top_k_per_class(random_rows(generator, n_images, 4, allowed), 2, allowed)
    rows = random_rows(generator, n_images, 4, allowed)
    expected = dict(zip(current.image_index.tolist(), current.labels.tolist(), strict=True))
    known = set(expected)
    for c in allowed:
        own = [i for i in range(n_images) if i not in known and predicted(rows[i], allowed) == c]
        expected |= dict.fromkeys(sorted(own, key=lambda i: (-rows[i, c], i))[:n_new], c)
    grown = add_confident(current, rows, n_new, allowed, 5)
    assert dict(zip(grown.image_index.tolist(), grown.labels.tolist(), strict=True)) == expected
