"""The margin against slow loops over Equations 2 to 7."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captune.concepts import confusion
from captune.core.arrays import unit_rows

Vector = list[float]


def slow_cosine(a: Vector, b: Vector) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(x * x for x in b))


def slow_prototypes(images: list[Vector], labels: list[int], texts: list[Vector]) -> list[Vector]:
    result = []
    for c, text in enumerate(texts):
        own = [v for v, y in zip(images, labels, strict=True) if y == c]
        result.append([sum(column) / len(own) for column in zip(*own, strict=True)] if own else text)
    return result


def slow_margin(
    images: list[Vector],
    labels: list[int],
    texts: list[Vector],
    rows: list[Vector],
    tau: float,
    margin: float,
) -> list[list[float]]:
    n = len(texts)
    v = slow_prototypes(images, labels, texts)
    sigma = [sum(max(p) >= tau and p.index(max(p)) == c for p in rows) for c in range(n)]  # Eq. 3
    if max(sigma) == 0:
        return [[0.0] * n for _ in range(n)]
    r = [count / max(sigma) for count in sigma]
    delta = [1 - x for x in r]  # Eq. 4
    degree = max(delta)  # Eq. 5
    m = [margin * degree * x for x in delta]  # Eq. 6
    matrix = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            if i != j:
                similarity = max(slow_cosine(v[i], v[j]), slow_cosine(texts[i], texts[j]))  # Eq. 2
                matrix[i][j] = similarity * m[i]  # Eq. 7
    return matrix


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_images=st.integers(1, 30),
    n_classes=st.integers(2, 6),
    tau=st.sampled_from([0.0, 0.5, 0.7, 1.1]),
)
def test_margin_equals_its_equations(seed: int, n_images: int, n_classes: int, tau: float) -> None:
    generator = np.random.default_rng(seed)
    images = unit_rows(generator.standard_normal((n_images, 5)).astype(np.float32))
    texts = unit_rows(generator.standard_normal((n_classes, 5)).astype(np.float32))
    labels = generator.integers(0, n_classes, n_images)
    rows = generator.dirichlet(np.full(n_classes, 0.3), n_images).astype(np.float32)

    prototypes = confusion.class_prototypes(images, labels, texts)
    similarity = confusion.class_similarity(prototypes, texts)
    counts = confusion.confident_counts(rows, tau)
    fast = confusion.confusion_margin(similarity, counts, margin=9.0)

    slow = slow_margin(images.tolist(), labels.tolist(), texts.tolist(), rows.tolist(), tau, 9.0)
    np.testing.assert_allclose(fast.matrix, slow, atol=2e-4)
    slow_means = unit_rows(np.array(slow_prototypes(images.tolist(), labels.tolist(), texts.tolist())))
    np.testing.assert_allclose(prototypes, slow_means, atol=1e-5)


def test_margin_by_hand() -> None:
    similarity = np.array([[1.0, 0.5, 0.2], [0.5, 1.0, 0.8], [0.2, 0.8, 1.0]], dtype=np.float32)
    made = confusion.confusion_margin(similarity, np.array([4, 1, 0]), margin=10.0)
    assert made.neglect.tolist() == [0.0, 0.75, 1.0]
    assert made.imbalance == 1.0
    expected = [[0, 0, 0], [3.75, 0, 6.0], [2.0, 8.0, 0]]
    assert made.matrix.tolist() == [pytest.approx(row) for row in expected]
