"""The Gaussian mixture anchored at class texts against loops over images, classes and dimensions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from captune.core.arrays import softmax_rows, unit_rows
from captune.labeling.gaussian_mixture import SMALLEST_VARIANCE, Anchoring, fit_gaussian_mixture

Rows = list[list[float]]


def slow_softmax(scores: list[float]) -> list[float]:
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    return [weight / sum(weights) for weight in weights]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow_estimate(
    images: Rows, weights: Rows, anchors: Rows, anchor_variance: float, frequency: list[float], alpha: float
) -> tuple[Rows, list[float], list[float]]:
    """Return means, variance and log-shares; `weights` say how much an image counts for each class."""
    n_classes, width = len(anchors), len(anchors[0])
    means = []
    for c in range(n_classes):
        n = sum(row[c] for row in weights)
        pull = alpha / (n + alpha)
        mean = []
        for d in range(width):
            own = sum(weights[i][c] * images[i][d] for i in range(len(images))) / n if n else 0.0
            mean.append((1 - pull) * own + pull * anchors[c][d])
        means.append(mean)
    variance = []
    for d in range(width):
        scatter, n = 0.0, 0.0
        for i, row in enumerate(weights):
            for c in range(n_classes):
                scatter += row[c] * (images[i][d] - means[c][d]) ** 2
                n += row[c]
        value = (scatter + n_classes * alpha * anchor_variance) / (n + n_classes * alpha)
        variance.append(max(value, SMALLEST_VARIANCE / width))
    total = sum(frequency) + n_classes * alpha
    return means, variance, [math.log((n + alpha) / total) for n in frequency]


def slow_cluster(
    images: Rows, texts: Rows, scale: float, rule: Anchoring, labeled: Rows, labels: list[int], allowed: list[int]
) -> tuple[Rows, list[float], list[float], Rows]:
    n_classes, width = len(texts), len(texts[0])
    times = [labels.count(c) for c in range(n_classes)]
    known = [
        [(1 + rule.labeled_weight / times[c]) if c == label else 0.0 for c in range(n_classes)] for label in labels
    ]

    def over_allowed(scores: list[float]) -> list[float]:
        some = slow_softmax([scores[c] for c in allowed])
        return [some[allowed.index(c)] if c in allowed else 0.0 for c in range(n_classes)]

    found = [over_allowed([scale * dot(x, t) for t in texts]) for x in images]
    everyone, weights = images + labeled, found + known
    mass = [sum(row[c] for row in weights) for c in range(n_classes)]
    center = [sum(sum(w) * x[d] for x, w in zip(everyone, weights, strict=True)) / sum(mass) for d in range(width)]
    middle = [sum(mass[c] * texts[c][d] for c in range(n_classes)) / sum(mass) for d in range(width)]
    anchors = [[texts[c][d] + center[d] - middle[d] for d in range(width)] for c in range(n_classes)]
    spread = sum(sum(w) * (x[d] - center[d]) ** 2 for x, w in zip(everyone, weights, strict=True) for d in range(width))
    anchor_variance = max(spread / sum(mass) / width, SMALLEST_VARIANCE / width)
    for _ in range(rule.iterations):
        frequency = [sum(row[c] for row in found) + times[c] for c in range(n_classes)]
        means, variance, shares = slow_estimate(
            everyone, found + known, anchors, anchor_variance, frequency, rule.alpha
        )
        found = []
        for x in images:
            scores = []
            for c in range(n_classes):
                density = -0.5 * sum((x[d] - means[c][d]) ** 2 / variance[d] for d in range(width))
                scores.append(rule.sharpness * density + rule.text_weight * scale * dot(x, texts[c]) + shares[c])
            found.append(over_allowed(scores))
    return means, variance, shares, found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n_labeled", [0, 5])
def test_clustering_is_what_the_loops_say(seed: int, n_labeled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captune.labeling.gaussian_mixture.TOLERANCE", -1.0)  # every round is made
    monkeypatch.setattr("captune.labeling.gaussian_mixture.ROWS_AT_ONCE", 7)
    generator = np.random.default_rng(seed)
    texts = unit_rows(generator.normal(size=(4, 6)).astype(np.float32))
    images = unit_rows((texts[generator.integers(4, size=25)] + generator.normal(size=(25, 6))).astype(np.float32))
    labeled = unit_rows(generator.normal(size=(n_labeled, 6)).astype(np.float32))
    labels = generator.integers(2, size=n_labeled)
    allowed = [1, 2, 3] if n_labeled else [0, 1, 2, 3]
    rule = Anchoring(alpha=2.0, text_weight=0.4, sharpness=0.5, iterations=4, labeled_weight=3.0)
    fast = fit_gaussian_mixture(images, texts, 8.0, rule, labeled=labeled, labels=labels, allowed=allowed)
    means, variance, shares, found = slow_cluster(
        images.tolist(), texts.tolist(), 8.0, rule, labeled.tolist(), labels.tolist(), allowed
    )
    assert fast.rounds == 4
    assert np.allclose(fast.mixture.means, means, atol=1e-5)
    assert np.allclose(fast.mixture.variance, variance, atol=1e-5)
    assert np.allclose(fast.mixture.log_shares, shares, atol=1e-5)
    assert np.allclose(fast.probabilities, found, atol=1e-4)


def test_the_linear_rule_is_the_log_density() -> None:
    generator = np.random.default_rng(0)
    images = unit_rows(generator.normal(size=(30, 5)).astype(np.float32))
    found = fit_gaussian_mixture(images, images[:3], 5.0).mixture
    weights, offsets = found.linear_rule(0.7)
    for x, row in zip(images, softmax_rows(images @ weights.T + offsets), strict=True):
        density = [
            sum(-0.5 * (x[d] - m[d]) ** 2 / v - 0.5 * math.log(2 * math.pi * v) for d, v in enumerate(found.variance))
            for m in found.means
        ]
        literal = slow_softmax([0.7 * one + float(share) for one, share in zip(density, found.log_shares, strict=True)])
        assert np.allclose(row, literal, atol=1e-4)
