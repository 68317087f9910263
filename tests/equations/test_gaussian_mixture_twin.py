"""The Gaussian mixture next to class texts against loops over images, classes and dimensions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from captune.core.arrays import canonical_order, unit_rows
from captune.mixture.calibration import CONFIRMED_WEIGHT, EVENING_STEPS
from captune.mixture.gaussian_mixture import SMALLEST_VARIANCE, MixtureSettings, fit_gaussian_mixture

Rows = list[list[float]]


def slow_softmax(scores: list[float]) -> list[float]:
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    return [weight / sum(weights) for weight in weights]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow_spread(scores: Rows) -> float:
    """Return the mean over images of the standard deviation over classes."""
    deviations = []
    for row in scores:
        mean = sum(row) / len(row)
        deviations.append(math.sqrt(sum((score - mean) ** 2 for score in row) / len(row)))
    return sum(deviations) / len(deviations)


def slow_evening(scores: Rows, temperature: float) -> list[float]:
    """Return offsets that draw class sizes to their mean, as far as one minus the mean confidence explains them."""
    n, n_classes = len(scores), len(scores[0])
    cooled = [[score / temperature for score in row] for row in scores]
    found = [slow_softmax(row) for row in cooled]
    sizes = [sum(row.index(max(row)) == c for row in found) for c in range(n_classes)]
    error = 1 - sum(max(row) for row in found) / n
    variance = sum((size - n / n_classes) ** 2 for size in sizes) / n_classes
    share = min(1.0, error**2 * (n / n_classes) ** 2 / variance)
    target = [sum(row[c] for row in found) ** (1 - share) for c in range(n_classes)]
    target = [n * size / sum(target) for size in target]
    offsets = [0.0] * n_classes
    for _ in range(EVENING_STEPS):
        now = [slow_softmax([score + o for score, o in zip(row, offsets, strict=True)]) for row in cooled]
        totals = [sum(row[c] for row in now) for c in range(n_classes)]
        offsets = [o + math.log(t / total) for o, t, total in zip(offsets, target, totals, strict=True)]
    mean = sum(offsets) / n_classes
    return [temperature * (offset - mean) for offset in offsets]


def confidence(rows: Rows, temperature: float = 1.0) -> float:
    return sum(max(slow_softmax([score / temperature for score in row])) for row in rows) / len(rows)


def slow_temperature(scores: Rows, wanted: float) -> float:
    """Return the temperature at which scores have the wanted mean confidence."""
    low, high = math.log(0.02), math.log(50.0)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if confidence(scores, math.exp(middle)) > wanted else (low, middle)
    return math.exp((low + high) / 2)


def confirmed_confidence(scores: Rows, texts_say: Rows) -> float:
    """Return zero-shot's confidence, drawn to the share of its predictions that stay where that is higher."""
    stays = [row.index(max(row)) == text.index(max(text)) for row, text in zip(scores, texts_say, strict=True)]
    before = confidence(texts_say)
    return before + CONFIRMED_WEIGHT * max(0.0, sum(stays) / len(stays) - before)


def slow_likely(around: Rows, texts: Rows, scale: float, label: int) -> list[float]:
    """Return the mean probability of a label among some images, at each temperature of the texts."""
    return [
        sum(slow_softmax([scale / 2**t * dot(x, text) for text in texts])[label] for x in around) / len(around)
        for t in range(7)
    ]


def slow_belief(likely: dict[int, list[float]], n_classes: int) -> dict[int, float]:
    """Return how far labels are believed, by their probability at each temperature of the texts."""

    def odds(p: float) -> tuple[float, float]:
        return 0.95 * p, 0.05 / (n_classes - 1) * (1 - p)

    # One label in twenty is wrong; the texts have the temperature at which the labels are most likely.
    best = max(range(7), key=lambda t: sum(math.log(sum(odds(p[t]))) for p in likely.values()))
    return {i: odds(p[best])[0] / sum(odds(p[best])) for i, p in likely.items()}


def slow_test(
    images: Rows, texts: Rows, scale: float, rule: MixtureSettings, labeled: Rows, labels: list[int], allowed: list[int]
) -> tuple[float, float]:
    """Return how accurate fits to four fifths of the labels are, by the rest, and how far this is believed."""
    counted = sorted((i for i in range(len(labels)) if labels[i] in allowed), key=lambda i: labels[i])
    if len(counted) < 10:
        return 0.0, 0.0
    n_right = 0
    tested: Rows = []
    others: Rows = []
    for fold in (counted[start::5] for start in range(5)):
        rest = [i for i in range(len(labels)) if i not in fold]
        some = ([labeled[i] for i in rest], [labels[i] for i in rest])
        weights, offsets, _, _ = slow_fit(images, texts, scale, rule, *some, allowed, tested=(0.0, 0.0))
        for x in images:
            others.append([scale * dot(x, texts[c]) + dot(x, weights[c]) + offsets[c] for c in allowed])
        for i in fold:
            x = labeled[i]
            tested.append([scale * dot(x, texts[c]) + dot(x, weights[c]) + offsets[c] for c in allowed])
            n_right += allowed[tested[-1].index(max(tested[-1]))] == labels[i]
    often = len(counted) / len(allowed)
    # The confidence that all images have at the temperature that is right for the labels.
    temperature = slow_temperature(tested, (n_right + 1) / (len(counted) + 2))
    return confidence([[score / temperature for score in row] for row in others]), often**2 / (often**2 + 1)


def slow_fit(
    images: Rows,
    texts: Rows,
    scale: float,
    rule: MixtureSettings,
    labeled: Rows,
    labels: list[int],
    allowed: list[int],
    tested: tuple[float, float] | None = None,
) -> tuple[Rows, list[float], float, Rows]:
    n, n_classes, width = len(images), len(texts), len(texts[0])
    center = [sum(x[d] for x in images) / n for d in range(width)]
    points = [[x[d] - center[d] for d in range(width)] for x in images]
    known = [[x[d] - center[d] for d in range(width)] for x in labeled]
    k = min(10, n // (2 * len(allowed)))
    likely: dict[int, list[float]] = {}
    for i, x in enumerate(labeled):  # a labeled image counts with its nearest images, if they may have its class
        if labels[i] not in allowed:
            continue
        nearest = sorted(range(n), key=lambda j: -dot(x, images[j]))[:k]
        near = [sum(points[j][d] for j in nearest) / len(nearest) for d in range(width)]
        share = 0.8 / labels.count(labels[i])
        known[i] = [(1 - share) * known[i][d] + share * near[d] for d in range(width)]
        likely[i] = slow_likely([x, *(images[j] for j in nearest)], texts, scale, labels[i])
    belief = list({**dict.fromkeys(range(len(labels)), 1.0), **slow_belief(likely, n_classes)}.values())
    times = [sum(b for b, label in zip(belief, labels, strict=True) if label == c) for c in range(n_classes)]
    said = [slow_softmax([scale * dot(x, t) for t in texts]) for x in labeled]
    agreed = [row[label] / max(row) for row, label in zip(said, labels, strict=True)]
    agreement = sum(b * a for b, a in zip(belief, agreed, strict=True)) / sum(belief) if labels else 1.0
    trust = [1.0] * n_classes
    for c in set(labels):
        own = sum(b * a for b, a, label in zip(belief, agreed, labels, strict=True) if label == c)
        trust[c] = max(0.1, (own + agreement) / (times[c] + 1))

    def over_allowed(scores: list[float]) -> list[float]:
        some = slow_softmax([scores[c] for c in allowed])
        return [some[allowed.index(c)] if c in allowed else 0.0 for c in range(n_classes)]

    texts_say = [[scale * dot(x, t) for t in texts] for x in images]
    text_spread = slow_spread([[row[c] for c in allowed] for row in texts_say])
    per_class, often = n / n_classes, (len(labels) / n_classes) ** 4 * (2 * (1 - agreement)) ** 2
    loud = rule.image_weight * per_class / (per_class + rule.half_weight_at) * (1 + 3 * often / (often + 1))
    found = [over_allowed(row) for row in texts_say]
    weights, start, evening = found, None, [0.0] * n_classes
    for number in range(2 * rule.iterations):
        heard = 0.0 if labels and number == 0 else 1.0  # with labels, the first means are theirs
        counts = [sum(row[c] for row in weights) for c in range(n_classes)]
        sums, label_sums = [], []
        for c in range(n_classes):
            sums.append([sum(weights[i][c] * points[i][d] for i in range(n)) for d in range(width)])
            own = [(b, x) for b, x, label in zip(belief, known, labels, strict=True) if label == c]
            label_sums.append([rule.labeled_weight * sum(b * x[d] for b, x in own) for d in range(width)])
        if start is None:
            start = [[sums[c][d] / max(counts[c], 1e-9) for d in range(width)] for c in range(n_classes)]
        within = np.zeros((width, width))
        for a in range(width):
            for b in range(width):
                total = sum(x[a] * x[b] for x in points) / n
                between = sum(
                    counts[c] / sum(counts) * (sums[c][a] / max(counts[c], 1e-9)) * (sums[c][b] / max(counts[c], 1e-9))
                    for c in range(n_classes)
                )
                within[a, b] = total - between
        mean_variance = max(sum(within[d, d] for d in range(width)) / width, SMALLEST_VARIANCE / width)
        within *= 1 - rule.shrinkage
        for d in range(width):
            within[d, d] += rule.shrinkage * mean_variance
        inverse = np.linalg.inv(within)
        directions, lengths = [], []
        for c in range(n_classes):
            pulled = heard * counts[c] + rule.labeled_weight * times[c] + rule.alpha * trust[c]
            mean = [
                (heard * sums[c][d] + label_sums[c][d] + rule.alpha * trust[c] * start[c][d]) / pulled
                for d in range(width)
            ]
            direction = [sum(inverse[d, e] * mean[e] for e in range(width)) for d in range(width)]
            directions.append(direction)
            lengths.append(max(dot(direction, mean), 1e-9))
        length = sum(counts[c] * lengths[c] for c in range(n_classes)) / sum(counts)
        directions = [[v * math.sqrt(length / lengths[c]) for v in directions[c]] for c in range(n_classes)]
        images_say = [[dot(x, direction) for direction in directions] for x in points]
        factor = loud * text_spread / slow_spread(images_say)
        frequency = [counts[c] + times[c] + rule.alpha for c in range(n_classes)]
        shares = [math.log(f / sum(frequency)) + e for f, e in zip(frequency, evening, strict=True)]
        scores = [[texts_say[i][c] + factor * images_say[i][c] + shares[c] for c in range(n_classes)] for i in range(n)]
        found = [over_allowed(row) for row in scores]
        if number == rule.iterations - 1:
            some = [[row[c] for c in allowed] for row in scores]
            before = confidence([[row[c] for c in allowed] for row in texts_say])
            temperature = slow_temperature(some, before)
            for c, offset in zip(allowed, slow_evening(some, temperature), strict=True):
                evening[c] = offset
        weights = found
    rule_weights = [[factor * v for v in direction] for direction in directions]
    some, texts_say = ([[row[c] for c in allowed] for row in rows] for rows in (scores, texts_say))
    accuracy, believed = tested if tested else slow_test(images, texts, scale, rule, labeled, labels, allowed)
    wanted = (1 - believed) * confirmed_confidence(some, texts_say) + believed * accuracy
    temperature = slow_temperature(some, wanted)
    tempered = [over_allowed([score / temperature for score in row]) for row in scores]
    return rule_weights, [shares[c] - dot(rule_weights[c], center) for c in range(n_classes)], temperature, tempered


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n_labeled", [0, 5, 18])
def test_the_mixture_is_what_the_loops_say(seed: int, n_labeled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captune.mixture.gaussian_mixture.TOLERANCE", -1.0)  # every round is made
    monkeypatch.setattr("captune.core.arrays.CHUNK_BYTES", 7 * 4 * 6)
    generator = np.random.default_rng(seed)
    texts = unit_rows(generator.normal(size=(4, 6)).astype(np.float32))
    images = unit_rows((texts[generator.integers(4, size=25)] + generator.normal(size=(25, 6))).astype(np.float32))
    labeled = unit_rows(generator.normal(size=(n_labeled, 6)).astype(np.float32))
    labels = generator.integers(4 if n_labeled > 5 else 2, size=n_labeled)
    allowed = [1, 2, 3] if n_labeled else [0, 1, 2, 3]
    rule = MixtureSettings(iterations=4, half_weight_at=5.0, alpha=2.0)
    fast = fit_gaussian_mixture(images, texts, 8.0, rule, labeled=labeled, labels=labels, allowed=allowed)
    order = canonical_order(labeled)  # decides which labels are held out together
    labeled, labels = labeled[order], labels[order]
    weights, offsets, temperature, found = slow_fit(
        images.tolist(), texts.tolist(), 8.0, rule, labeled.tolist(), labels.tolist(), allowed
    )
    assert fast.rounds == 8
    assert np.allclose(fast.weights, weights, atol=2e-3)
    assert np.allclose(fast.offsets, offsets, atol=2e-3)
    assert fast.temperature == pytest.approx(temperature, rel=1e-3)
    assert np.allclose(fast.probabilities, found, atol=1e-3)
