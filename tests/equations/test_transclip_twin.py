"""TransCLIP's updates against loops over images, classes and dimensions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from captune.core.arrays import Floats, unit_rows
from captune.methods.transclip import solve_transclip

SCALE = 5.0
"""Low, so that no two probabilities round to one and the top images are the same in single precision."""


def softmax(scores: list[float]) -> list[float]:
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def slow_transclip(
    images: Floats, texts: Floats, k: int, n_top: int, rounds: int, density_weight: float
) -> list[list[float]]:
    """Return the assignments z after some rounds of 5 updates of z, then of means and variance."""
    x, t = images.astype(float).tolist(), texts.astype(float).tolist()
    n, n_classes, width = len(x), len(t), len(x[0])

    def dot(a: list[float], b: list[float]) -> float:
        return sum(p * q for p, q in zip(a, b, strict=True))

    prior = [softmax([SCALE * dot(row, text) for text in t]) for row in x]
    near = [sorted((j for j in range(n) if j != i), key=lambda j: -dot(x[i], x[j]))[:k] for i in range(n)]
    means = []
    for c in range(n_classes):
        top = sorted(range(n), key=lambda i: -prior[i][c])[:n_top]
        means.append(unit([sum(x[i][d] for i in top) for d in range(width)]))
    variance, z = [1 / width] * width, prior
    for _ in range(rounds):
        for _ in range(5):
            new = []
            for i in range(n):
                scores = []
                for c in range(n_classes):
                    # log of the Gaussian density, without what all classes share
                    density = sum((x[i][d] - means[c][d] / 2) * means[c][d] / variance[d] for d in range(width))
                    votes = sum(max(0.0, dot(x[i], x[j])) * z[j][c] for j in near[i])
                    scores.append(density_weight * density + votes / 3 + math.log(prior[i][c] + 1e-12))
                new.append(softmax(scores))
            z = new
        for c in range(n_classes):
            means[c] = unit([sum(z[i][c] * x[i][d] for i in range(n)) for d in range(width)])
        variance = [
            sum(z[i][c] * (x[i][d] - means[c][d]) ** 2 for i in range(n) for c in range(n_classes)) / n
            for d in range(width)
        ]
    return z


@pytest.mark.parametrize(("k", "n_top", "rounds", "density_weight"), [(3, 8, 3, 0.02), (1, 2, 1, 1.0), (5, 30, 2, 0.1)])
@pytest.mark.parametrize("seed", [0, 1])
def test_assignments_are_those_of_the_updates(
    k: int, n_top: int, rounds: int, density_weight: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    texts = unit_rows(generator.normal(size=(4, 6)).astype(np.float32))
    images = texts[generator.integers(4, size=30)] + 0.6 * generator.normal(size=(30, 6))
    images = unit_rows(images.astype(np.float32))
    found = solve_transclip(
        images, texts, SCALE, neighbors=k, n_top=n_top, iterations=rounds, density_weight=density_weight
    )
    slow = slow_transclip(images, texts, k, n_top, rounds, density_weight)
    assert np.allclose(found.probabilities, slow, atol=1e-3)
