"""Which images are chosen: they cover what no label speaks for, as TypiClust and ProbCover do."""

from __future__ import annotations

import numpy as np
import pytest

from captune.core.arrays import Floats, Ints, unit_rows
from captune.review.suggestions import choose_images, spread_checks

SIZES = (60, 50, 40, 30, 25, 20, 15, 10)


def make_blobs(seed: int) -> tuple[Floats, Ints]:
    """Return groups of images of very different sizes."""
    generator = np.random.default_rng(seed)
    centers = 4 * np.linalg.qr(generator.normal(size=(12, 12)))[0][: len(SIZES)]
    owners = np.repeat(np.arange(len(SIZES)), SIZES)
    return (centers[owners] + 0.3 * generator.normal(size=(len(owners), 12))).astype(np.float32), owners


def no_labels(n_images: int) -> Ints:
    return np.full(n_images, -1)


def uncertain(n_images: int) -> Floats:
    return np.full((n_images, 4), 0.25, dtype=np.float32)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", ["TypiClust", "ProbCover"])
def test_choices_cover_as_much_as_those_of_scikit_activeml(seed: int, rule: str) -> None:
    pool = pytest.importorskip("skactiveml.pool")
    vectors, owners = make_blobs(seed)
    labeled = np.array([0, 70])  # one image of each of the two largest groups
    labels = np.full(len(vectors), np.nan)
    labels[labeled] = owners[labeled]
    reference = getattr(pool, rule)(random_state=seed).query(vectors, labels, batch_size=6)
    known = no_labels(len(vectors))
    known[labeled] = [0, 1]
    found = choose_images(vectors, uncertain(len(vectors)), known, np.flatnonzero(known < 0), 6, seed)
    covered, by_reference = ({*owners[labeled], *owners[rows]} for rows in (found.positions, reference))
    # K-means may join the two smallest groups; none of the large ones is missed.
    assert len(covered) >= len(by_reference) - 1
    assert covered >= set(range(6))


def test_a_choice_is_typical_of_what_it_represents() -> None:
    vectors, owners = make_blobs(0)
    everything = np.arange(len(vectors))
    found = choose_images(vectors, uncertain(len(vectors)), no_labels(len(vectors)), everything, 8, 0)
    centers = np.stack([vectors[owners == c].mean(axis=0) for c in range(len(SIZES))])
    distances = np.linalg.norm(vectors - centers[owners], axis=1)
    for position in found.positions:
        assert distances[position] <= np.median(distances[owners == owners[position]])
    assert sum(found.represents) == pytest.approx(len(vectors), rel=0.25)


def test_unclear_groups_come_first() -> None:
    vectors, owners = make_blobs(1)
    clear = np.zeros((len(vectors), 4), dtype=np.float32)
    clear[:, 0] = 1.0
    clear[owners == 5] = 0.25
    found = choose_images(vectors, clear, no_labels(len(vectors)), np.arange(len(vectors)), 8, 0)
    assert owners[found.positions[0]] == 5


def test_unclear_images_are_looked_at_more_closely_but_clear_ones_too() -> None:
    generator = np.random.default_rng(0)
    owners = np.arange(400) % 2
    vectors = (generator.normal(size=(400, 8)) + 6 * owners[:, None]).astype(np.float32)
    probabilities = np.where(owners[:, None] == 0, [1.0, 0, 0, 0], [0.25] * 4).astype(np.float32)
    found = choose_images(vectors, probabilities, no_labels(400), np.arange(400), 10, 0)
    assert 6 <= np.count_nonzero(owners[found.positions] == 1) <= 9


def test_every_class_gets_its_turn() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(600, 8)).astype(np.float32)
    probabilities = np.full((600, 10), 0.001, dtype=np.float32)
    probabilities[:, 0] += 0.5  # nearly every image is predicted as an unclear class 0
    probabilities[np.arange(18), 1 + np.arange(18) % 9] = 0.99
    labels = no_labels(600)
    for _ in range(10):  # batch by batch; the person confirms what is predicted
        found = choose_images(vectors, probabilities, labels, np.flatnonzero(labels < 0), 5, 0)
        labels[found.positions] = probabilities[found.positions].argmax(axis=1)
    for name in range(10):
        assert np.count_nonzero(labels == name)


def test_checks_are_spread_over_the_others() -> None:
    vectors, _ = make_blobs(0)
    everything = np.arange(3, len(vectors))
    typical = choose_images(vectors, uncertain(len(vectors)), no_labels(len(vectors)), everything, 7, 0)
    found = spread_checks(typical, np.arange(3))
    assert [position for position, _, kind in found if kind == "check"] == [0, 1, 2]
    assert found[0][2] != "check"
    assert len({position for position, _, _ in found}) == 10
    assert len(spread_checks(typical, np.empty(0, dtype=np.int64))) == 7


def test_the_order_of_the_images_changes_no_suggestion() -> None:
    generator = np.random.default_rng(5)
    vectors = unit_rows(generator.normal(size=(120, 8)).astype(np.float32))
    probabilities = generator.dirichlet(np.ones(4), size=120).astype(np.float32)
    labels = np.where(np.arange(120) % 10 == 0, np.arange(120) % 4, -1)
    chosen = []
    for order in (np.arange(120), generator.permutation(120)):
        free = np.flatnonzero(labels[order] < 0)
        found = choose_images(vectors[order], probabilities[order], labels[order], free, 10, 0)
        chosen.append((order[found.positions].tolist(), found.represents.tolist()))
    assert chosen[0] == chosen[1]
