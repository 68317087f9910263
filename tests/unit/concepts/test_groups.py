"""Groups of colliding classes are tight, small and found without labels."""

from __future__ import annotations

import numpy as np

from captune.concepts.confusion import class_closeness, confused_groups
from captune.core.arrays import Floats, unit_rows


def planted(seed: int = 0) -> Floats:
    """Twelve classes: 0-2 and 5-6 are look-alikes, the rest are strangers."""
    generator = np.random.default_rng(seed)
    vectors = generator.standard_normal((12, 64))
    for group in ([0, 1, 2], [5, 6]):
        vectors[group] = vectors[group[0]] + 0.3 * generator.standard_normal((len(group), 64))
    return unit_rows(vectors.astype(np.float32))


def test_planted_groups_are_found() -> None:
    vectors = planted()
    groups = confused_groups(class_closeness(vectors, vectors))
    assert {group.classes for group in groups} == {(0, 1, 2), (5, 6)}
    assert groups[0].closeness >= groups[1].closeness > 1.0


def test_shared_images_bring_classes_together() -> None:
    strangers = unit_rows(np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32))
    probabilities = np.eye(6, dtype=np.float32).repeat(10, axis=0)
    probabilities[:20, :2] = 0.5
    without = confused_groups(class_closeness(strangers, strangers), at_least=1.2)
    shared = confused_groups(class_closeness(strangers, strangers, probabilities), at_least=1.2)
    assert (0, 1) not in {group.classes for group in without}
    assert shared[0].classes == (0, 1)


def test_groups_stay_small_and_disjoint() -> None:
    alike = unit_rows(np.ones((10, 4), dtype=np.float32) + np.eye(10, 4, dtype=np.float32))
    closeness = class_closeness(alike, alike) + 3.0
    groups = confused_groups(closeness, largest=4)
    members = [c for group in groups for c in group.classes]
    assert max(len(group.classes) for group in groups) <= 4
    assert len(members) == len(set(members))


def test_a_chain_of_neighbors_is_not_one_group() -> None:
    closeness = np.zeros((6, 6))
    for c in range(5):
        closeness[c, c + 1] = closeness[c + 1, c] = 1.5
    assert max(len(group.classes) for group in confused_groups(closeness)) == 2


def test_the_order_of_classes_does_not_matter() -> None:
    vectors = planted(3)
    mixed = np.random.default_rng(0).permutation(12)
    straight = {group.classes for group in confused_groups(class_closeness(vectors, vectors))}
    shuffled = confused_groups(class_closeness(vectors[mixed], vectors[mixed]))
    assert {tuple(sorted(mixed[list(group.classes)].tolist())) for group in shuffled} == straight


def test_too_few_or_equal_classes_collide_with_nothing() -> None:
    for n_classes in (1, 2, 5):
        vectors = np.eye(n_classes, 8, dtype=np.float32)
        assert confused_groups(class_closeness(vectors, vectors)) == ()
