"""StatA's updates against loops over images, classes and dimensions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from captune.core.arrays import Floats, unit_rows
from captune.methods.stata import solve_stata

SCALE = 5.0


def softmax(scores: list[float]) -> list[float]:
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def dot(a: list[float], b: list[float]) -> float:
    return sum(p * q for p, q in zip(a, b, strict=True))


def slow_stata(images: Floats, texts: Floats, k: int, rounds: int, weight: float, alpha: float) -> list[list[float]]:
    """Return the assignments z after some rounds of 5 updates of z, then of means and variances."""
    x, t = images.astype(float).tolist(), texts.astype(float).tolist()
    n, n_classes, dimensions = len(x), len(t), range(len(x[0]))
    prior = [softmax([SCALE * dot(row, text) for text in t]) for row in x]
    near = [sorted((j for j in range(n) if j != i), key=lambda j: -dot(x[i], x[j]))[:k] for i in range(n)]
    anchor = [
        sum(prior[i][c] * (x[i][d] - t[c][d]) ** 2 for i in range(n) for c in range(n_classes)) / n for d in dimensions
    ]
    means, variances, z = [list(text) for text in t], [list(anchor) for _ in t], prior
    for _ in range(rounds):
        for _ in range(5):
            new = []
            for i in range(n):
                scores = []
                for c in range(n_classes):
                    density = sum(
                        -((x[i][d] - means[c][d]) ** 2) / (2 * variances[c][d]) - 0.5 * math.log(variances[c][d])
                        for d in dimensions
                    )
                    votes = sum(max(0.0, dot(x[i], x[j])) * z[j][c] for j in near[i])
                    scores.append(weight * density + votes / 3 + math.log(prior[i][c] + 1e-12))
                new.append(softmax(scores))
            z = new
        for c in range(n_classes):
            count = sum(z[i][c] for i in range(n))
            b = count / (count + alpha)
            for d in dimensions:
                mean = sum(z[i][c] * x[i][d] for i in range(n)) / count
                means[c][d] = b * mean + (1 - b) * t[c][d]
                own = sum(z[i][c] * (x[i][d] - means[c][d]) ** 2 for i in range(n)) / count
                variances[c][d] = b * own + (1 - b) * (anchor[d] + (t[c][d] - means[c][d]) ** 2)
    return z


@pytest.mark.parametrize(("k", "rounds", "weight", "alpha"), [(3, 3, 0.02, 1.0), (1, 1, 1.0, 5.0), (5, 2, 0.1, 0.5)])
def test_assignments_are_those_of_the_updates(k: int, rounds: int, weight: float, alpha: float) -> None:
    generator = np.random.default_rng(rounds)
    texts = unit_rows(generator.normal(size=(4, 6)).astype(np.float32))
    images = unit_rows((texts[generator.integers(4, size=30)] + generator.normal(size=(30, 6))).astype(np.float32))
    found = solve_stata(
        images, texts, SCALE, neighbors=k, iterations=rounds, density_weight=weight, anchor_weight=alpha
    )
    assert np.allclose(found.probabilities, slow_stata(images, texts, k, rounds, weight, alpha), atol=1e-4)
