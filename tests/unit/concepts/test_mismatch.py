"""Mismatch detection: it always ends, names only classes that take part, and its findings are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from captune.concepts import mismatch
from captune.concepts.clustering import ShrinkingClusters
from captune.concepts.mismatch import (
    PAPER_MISMATCH,
    MismatchSettings,
    best_pair,
    detect_mismatch,
    eliminate,
    match_texts,
    predict_zero_shot,
)
from captune.core.arrays import Floats, unit_rows
from captune.core.errors import InputError
from captune.core.settings import build


def clear_world(bad: tuple[int, ...], n_classes: int = 20, each: int = 20, seed: int = 0) -> tuple[Floats, Floats]:
    """Tight clusters; the names of the bad classes point away from all images."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(n_classes, 48)).astype(np.float32)
    centers[:, 40:] = 0
    centers = unit_rows(centers)
    noise = 0.05 * generator.normal(size=(n_classes * each, 48))
    images = unit_rows((np.repeat(centers, each, axis=0) + noise).astype(np.float32))
    texts = centers.copy()
    elsewhere = generator.normal(size=(len(bad), 48)).astype(np.float32)
    elsewhere[:, :40] *= 0.1
    texts[list(bad)] = unit_rows(elsewhere)
    return images, texts


@pytest.mark.parametrize("seed", range(3))
def test_the_product_finds_all_bad_names_and_no_good_one(seed: int) -> None:
    bad = (1, 5, 6, 11, 17)
    images, texts = clear_world(bad, seed=seed)
    found = detect_mismatch(images, texts, 100.0, MismatchSettings(seed=seed))
    assert tuple(found.mismatched) == bad
    assert found.threshold == 10
    assert found.frequency.shape == (20,)
    good = np.setdiff1d(np.arange(20), bad)
    assert found.concentration[good].mean() > found.concentration[list(bad)].mean()
    of_bad = np.flatnonzero(np.isin(np.arange(len(images)) // 20, bad))
    assert np.isin(of_bad, found.remaining).mean() > 0.9


def test_names_that_fit_are_left_alone() -> None:
    images, texts = clear_world(())
    assert len(detect_mismatch(images, texts, 100.0).mismatched) == 0


def test_the_paper_names_at_most_t_minus_one_and_nothing_up_to_ten_classes() -> None:
    images, texts = clear_world((1, 2, 3, 4, 5))
    found = detect_mismatch(images, texts, 100.0, PAPER_MISMATCH)
    assert found.threshold == 2
    assert len(found.mismatched) <= 1
    images, texts = clear_world((1, 2), n_classes=10)
    found = detect_mismatch(images, texts, 100.0, PAPER_MISMATCH)
    assert found.threshold == 1
    assert len(found.mismatched) == 0


def test_only_classes_that_take_part_count() -> None:
    images, texts = clear_world((1, 5, 12))
    unseen = [1, 2, 12, 14, 16, 18]
    own = images[np.isin(np.arange(len(images)) // 20, unseen)]
    found = detect_mismatch(own, texts, 100.0, classes=unseen)
    assert tuple(found.classes) == tuple(unseen)
    assert {12} <= set(found.mismatched) <= {1, 12}
    seen = np.setdiff1d(np.arange(20), unseen)
    assert np.isnan(found.concentration[seen]).all()
    assert not np.isnan(found.concentration[unseen]).any()


def test_a_sample_of_many_images_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = (1, 5, 6, 11, 17)
    images, texts = clear_world(bad, each=60)
    monkeypatch.setattr(mismatch, "MOST_IMAGES", 400)
    found = detect_mismatch(images, texts, 100.0)
    assert tuple(found.mismatched) == bad
    assert len(found.remaining) <= 400
    again = detect_mismatch(images, texts, 100.0)
    for name in ("mismatched", "frequency", "remaining", "concentration"):
        assert np.array_equal(getattr(found, name), getattr(again, name))


def test_the_images_given_stay_as_they_are() -> None:
    images, texts = clear_world((1, 2))
    copies = images.copy(), texts.copy()
    images.flags.writeable = texts.flags.writeable = False
    detect_mismatch(images, texts, 100.0, MismatchSettings(runs=2))
    assert np.array_equal(images, copies[0])
    assert np.array_equal(texts, copies[1])


@given(
    st.integers(1, 30),
    st.integers(1, 12),
    st.floats(0.01, 1.0),
    st.integers(0, 5),
    st.sampled_from([0, 1, 2]),
    st.data(),
)
def test_it_ends_and_keeps_its_promises_on_any_input(
    n_images: int, n_classes: int, share: float, seed: int, n_kinds: int, data: st.DataObject
) -> None:
    generator = np.random.default_rng(seed)
    images = generator.normal(size=(n_images, 4)).astype(np.float32)
    if n_kinds:  # many images that are copies of one another
        images = images[generator.integers(min(n_kinds, n_images), size=n_images)]
    texts = generator.normal(size=(n_classes, 4)).astype(np.float32)
    classes = data.draw(st.lists(st.integers(0, n_classes - 1), min_size=1, unique=True))
    settings = MismatchSettings(threshold_share=share, runs=2, min_frequency=0.5, rare_below=None, seed=seed)
    found = detect_mismatch(unit_rows(images), unit_rows(texts), 50.0, settings, classes)
    assert set(found.mismatched) <= set(classes)
    assert found.frequency.sum() <= max(0, found.threshold - 1) + 1e-6
    assert np.all(np.diff(found.remaining) > 0)
    assert set(found.remaining) <= set(range(n_images))
    one = detect_mismatch(unit_rows(images), unit_rows(texts), 50.0, PAPER_MISMATCH, classes)
    assert len(one.mismatched) <= max(0, one.threshold - 1)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5), st.booleans())
def test_clusters_shrink_to_nothing_and_hold_every_image_once(
    n_images: int, n_clusters: int, seed: int, is_copies: bool
) -> None:
    generator = np.random.default_rng(seed)
    images = np.ones((n_images, 3), dtype=np.float32) if is_copies else generator.normal(size=(n_images, 3))
    clusters = ShrinkingClusters(images.astype(np.float32), n_clusters, generator)
    while len(clusters.remaining):
        parts = [clusters.members(cluster) for cluster in range(len(clusters.centroids))]
        assert np.array_equal(np.sort(np.concatenate(parts)), clusters.remaining)
        assert len(clusters.centroids) <= n_clusters
        if len(clusters.centroids) == 1:
            break
        leaving = generator.choice(clusters.remaining, generator.integers(1, 3).clip(max=len(clusters.remaining)))
        clusters.shrink(np.unique(leaving), len(clusters.centroids) - 1)


def test_the_best_pair_is_found_where_probabilities_round_to_one() -> None:
    centroids = np.eye(3, dtype=np.float32)
    texts = np.array([[0.9, 0.1, 0.1], [0.1, 0.95, 0.05]], dtype=np.float32)
    matches = match_texts(texts, centroids, 100.0)
    assert np.all(1 / (1 + matches.odds_against) == 1.0)
    assert best_pair(texts, centroids, 100.0) == (1, 1)
    assert best_pair(texts[:1], 5 * centroids[:1], 100.0) == (0, 0)
    assert best_pair(texts, centroids[:1], 100.0) == (0, 0)  # one centroid: the most similar text


def test_ties_in_predicted_counts_go_to_the_less_probable_class() -> None:
    images = unit_rows(np.array([[1, 0, 0], [1, 0, 0.1]], dtype=np.float32))
    texts = unit_rows(np.array([[1, 0, 0], [0.5, 1, 0], [0, 1, 0]], dtype=np.float32))
    names = predict_zero_shot(images, texts, 10.0)
    assert names.counts.tolist() == [2, 0, 0]
    assert names.least_predicted(2).tolist() == [2, 1]


def test_t_is_the_share_of_the_classes_rounded_up() -> None:
    assert [PAPER_MISMATCH.threshold_of(n) for n in (1, 10, 11, 21, 30, 45, 102, 200)] == [1, 1, 2, 3, 3, 5, 11, 20]


def test_input_that_cannot_be_used_is_explained() -> None:
    images, texts = clear_world(())
    with pytest.raises(InputError, match=r"got \(400, 48\) and \(20, 47\)"):
        detect_mismatch(images, texts[:, 1:], 100.0)
    with pytest.raises(InputError, match="no class is eligible"):
        detect_mismatch(images, texts, 100.0, classes=[])
    with pytest.raises(InputError, match="class 20: ids run from 0 to 19"):
        detect_mismatch(images, texts, 100.0, classes=[3, 20])
    with pytest.raises(InputError, match="there are no images"):
        detect_mismatch(images[:0], texts, 100.0)
    with pytest.raises(InputError, match="runs"):
        build(MismatchSettings, {"runs": 0, "min_frequency": 2.0}, "settings")


def test_with_fewer_than_two_images_per_class_or_thousands_of_classes_nothing_is_detected() -> None:
    generator = np.random.default_rng(0)
    texts = unit_rows(generator.normal(size=(3000, 32)).astype(np.float32))
    images = unit_rows(generator.normal(size=(9000, 32)).astype(np.float32))
    for settings in (MismatchSettings(), PAPER_MISMATCH):
        for n_images, n_classes in ((1000, 3000), (9000, 3000), (100, 60)):
            found = detect_mismatch(images[:n_images], texts[:n_classes], settings=settings)
            assert (found.runs, len(found.mismatched)) == (0, 0)
            assert len(found.remaining) == n_images


def test_no_image_is_removed_if_none_of_the_cluster_is_predicted_as_the_class() -> None:
    images = np.repeat(np.eye(2, 4, dtype=np.float32), 5, axis=0)
    texts = unit_rows(np.array([[1, 0.1, 0, 0], [1, 0, 0.1, 0], [0, 0, 0.1, 1]], dtype=np.float32))
    names = predict_zero_shot(images, texts, 10.0)
    ended = eliminate(texts, names, ShrinkingClusters(images, 3, np.random.default_rng(0)), 1, 10.0)
    assert len(ended.removed) == 3
    assert len(ended.images) > 0
