"""Algorithm 1 and the choice of a description against literal, slow twins with scikit-learn's K-means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.cluster import KMeans

from captune.concepts.alignment import best_description, choose_descriptions
from captune.concepts.clustering import ShrinkingClusters
from captune.concepts.mismatch import (
    PAPER_MISMATCH,
    detect_mismatch,
    eliminate,
    predict_zero_shot,
)
from captune.core.arrays import Floats, Ints, unit_rows

SCALE = 40.0


def make_features(seed: int, n_images: int = 120, n_classes: int = 12, width: int = 16) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(n_classes, width))
    images = centers[np.arange(n_images) % n_classes] + generator.normal(size=(n_images, width))
    texts = centers + generator.normal(size=(n_classes, width))
    texts[::4] = generator.normal(size=texts[::4].shape)
    return unit_rows(images.astype(np.float32)), unit_rows(texts.astype(np.float32))


def cosine(a: Floats, b: Floats) -> float:
    return float(a @ b) / (math.sqrt(float(a @ a)) * math.sqrt(float(b @ b)))


def softmax(row: list[float]) -> list[float]:
    weights = [math.exp(SCALE * (value - max(row))) for value in row]
    return [weight / sum(weights) for weight in weights]


def literal_mismatch(images: Floats, texts: Floats, t: int, seed: int) -> tuple[set[int], set[int], set[int]]:
    """Algorithm 1 line by line, with the removal rule of Appendix B; returns I_final, Y_final, Y_MM."""
    probabilities = [softmax([cosine(v, w) for w in texts]) for v in images]
    predicted = [p.index(max(p)) for p in probabilities]
    left_images, left_texts = list(range(len(images))), list(range(len(texts)))
    while len(left_texts) >= t:
        k_means = KMeans(len(left_texts), random_state=seed, n_init=1).fit(images[left_images])
        p_text_centroid = [softmax([cosine(texts[i], c) for c in k_means.cluster_centers_]) for i in left_texts]
        best = max(max(row) for row in p_text_centroid)
        row = next(i for i, values in enumerate(p_text_centroid) if max(values) == best)
        i_star, j_star = left_texts[row], p_text_centroid[row].index(best)
        cluster = [k for k, label in zip(left_images, k_means.labels_, strict=True) if label == j_star]
        both = [k for k in cluster if predicted[k] == i_star]
        s = len(left_images) // len(left_texts)
        removed = sorted(both, key=lambda k: -max(probabilities[k]))[:s]
        left_images = [k for k in left_images if k not in removed]
        left_texts.remove(i_star)
    fewest = sorted(range(len(texts)), key=lambda c: (predicted.count(c), sum(p[c] for p in probabilities)))[:t]
    return set(left_images), set(left_texts), set(left_texts) & set(fewest)


class FromScratch(ShrinkingClusters):
    """The twin's clusterings in place of the fast ones."""

    def __init__(self, images: Floats, n_clusters: int, seed: int) -> None:
        self.images, self.seed, self.remaining = images, seed, np.arange(len(images))
        self.fit(n_clusters)

    def fit(self, n_clusters: int) -> None:
        k_means = KMeans(n_clusters, random_state=self.seed, n_init=1).fit(self.images[self.remaining])
        self.centroids = k_means.cluster_centers_
        self.owners = k_means.labels_.astype(np.int64)

    def shrink(self, images: Ints, n_clusters: int) -> None:
        self.remaining = np.setdiff1d(self.remaining, images)
        self.fit(min(n_clusters, len(self.remaining)))


@pytest.mark.parametrize("seed", range(12))
def test_elimination_is_algorithm_1_when_the_clusterings_are_the_same(seed: int) -> None:
    images, texts = make_features(seed)
    t = 2 + seed % 4
    names = predict_zero_shot(images, texts, SCALE)
    ended = eliminate(texts, names, FromScratch(images, len(texts), seed), t, SCALE)
    left_images, left_classes, mismatched = literal_mismatch(images, texts, t, seed)
    assert set(ended.images) == left_images
    assert set(ended.classes) == left_classes
    assert set(ended.classes) & set(names.least_predicted(t)) == mismatched
    assert set(ended.removed) == set(range(len(texts))) - left_classes


def test_detection_finds_what_the_literal_version_finds_on_clear_clusters() -> None:
    generator = np.random.default_rng(3)
    centers = unit_rows(generator.normal(size=(20, 64)).astype(np.float32))
    images = unit_rows((centers[np.arange(600) % 20] + 0.05 * generator.normal(size=(600, 64))).astype(np.float32))
    texts = centers.copy()
    texts[[4, 9]] = unit_rows(generator.normal(size=(2, 64)).astype(np.float32))
    found = detect_mismatch(images, texts, SCALE, PAPER_MISMATCH)
    _, _, literal = literal_mismatch(images, texts, found.threshold, 0)
    assert found.threshold == 2
    assert set(found.mismatched) == literal
    assert literal <= {4, 9}


def test_clusters_are_a_fixed_point_of_plain_lloyd_iterations() -> None:
    images, _ = make_features(1, n_images=300)
    clusters = ShrinkingClusters(images, 12, np.random.default_rng(0))
    generator = np.random.default_rng(1)
    for _ in range(9):
        clusters.shrink(generator.choice(clusters.remaining, 20, replace=False), len(clusters.centroids) - 1)
        left = images[clusters.remaining]
        clusters._settle(left, 100)
        owners = clusters.owners
        distances = ((left[:, None] - clusters.centroids[None]) ** 2).sum(axis=-1)
        own = distances[np.arange(len(left)), owners]
        assert np.allclose(own, distances.min(axis=1), atol=1e-5)
        for cluster, centroid in enumerate(clusters.centroids):
            assert np.allclose(centroid, left[owners == cluster].mean(axis=0), atol=1e-5)
            assert np.array_equal(clusters.members(cluster), clusters.remaining[owners == cluster])


def literal_choice(images: Floats, texts: Floats, centroids: Floats) -> int:
    """Appendix B, the optimal description: the text of the pair with the highest probability."""
    p_text_centroid = [softmax([cosine(w, c) for c in centroids]) for w in texts]
    return max(range(len(texts)), key=lambda i: max(p_text_centroid[i]))


@pytest.mark.parametrize("seed", range(10))
def test_the_chosen_description_is_that_of_the_most_probable_pair(seed: int) -> None:
    images, texts = make_features(seed)
    descriptions = texts[:5]
    centroids = KMeans(5, random_state=seed, n_init=1).fit(images).cluster_centers_
    assert best_description(descriptions, [centroids], SCALE) == literal_choice(images, descriptions, centroids)
    ours = ShrinkingClusters(images, 5, np.random.default_rng([seed, 0])).centroids
    assert choose_descriptions(images, {3: descriptions}, SCALE, seed=seed) == {
        3: literal_choice(images, descriptions, ours)
    }
