"""Every selection rule against a slow loop that reads like its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captune.labeling import selection


def slow_greedy(scores: np.ndarray, eligible: np.ndarray, k: int) -> dict[int, int]:
    """Walk through all pairs from the highest score down; keep a pair if image and class are free."""
    pairs = [(-scores[i, c], i, c) for i, c in zip(*np.nonzero(eligible), strict=True)]
    placed: dict[int, int] = {}
    for _, i, c in sorted(pairs):
        if i not in placed and list(placed.values()).count(c) < k:
            placed[int(i)] = int(c)
    return placed


def slow_proposals(preferences: np.ndarray, priorities: np.ndarray, quota: np.ndarray) -> dict[int, int]:
    """Propose one image at a time; the outcome of deferred acceptance does not depend on the order."""
    wishes = {
        i: [c for c in sorted(range(len(quota)), key=lambda c: -row[c]) if row[c] > -np.inf]
        for i, row in enumerate(preferences)
    }
    pools: dict[int, list[int]] = {c: [] for c in range(len(quota))}
    free = sorted(wishes, reverse=True)
    while free:
        i = free.pop()
        if wishes[i]:
            c = wishes[i].pop(0)
            pools[c].append(i)
            pools[c].sort(key=lambda j: (-priorities[j, c], j))
            free += pools[c][quota[c] :]
            pools[c] = pools[c][: quota[c]]
    return {i: c for c, images in pools.items() for i in images}


def slow_candidates(rows: np.ndarray, alpha: float, beta: float, allowed: list[int]) -> np.ndarray:
    """CPL's two rules, one image and one class at a time."""
    given = np.zeros(rows.shape, dtype=np.float32)
    for i, row in enumerate(rows):
        for c in allowed:
            given[i, c] = row[c] / row[allowed].sum()
    given64 = given.astype(np.float64)
    enough = np.quantile([row.max() for row in given64], alpha)
    result = np.zeros(rows.shape, dtype=bool)
    for i, row in enumerate(given64):
        within, total = [], 0.0
        for c in sorted(allowed, key=lambda c: -row[c]):
            within.append(c)
            total += row[c]
            if enough < 1 and total > enough:
                break
        across = [c for c in allowed if row[c] >= np.quantile(given64[:, c], beta)]
        for c in set(within) & set(across):  # as in the authors' code, each rule's probabilities are renormalized
            result[i, c] = row[c] / row[within].sum() > 1e-7 and row[c] / row[across].sum() > 1e-7
    return result


def as_dict(labels: selection.PseudoLabels) -> dict[int, int]:
    return dict(zip(labels.image_index.tolist(), labels.labels.tolist(), strict=True))


def random_scores(seed: int, n_images: int, n_classes: int, tied: bool) -> np.ndarray:
    generator = np.random.default_rng(seed)
    scores = generator.random((n_images, n_classes)).astype(np.float32)
    return (np.round(scores * 4) / 4).astype(np.float32) if tied else scores


sizes = {"seed": st.integers(0, 10**6), "n_images": st.integers(0, 25), "n_classes": st.integers(1, 6)}


@settings(max_examples=150, deadline=None)
@given(**sizes, k=st.integers(0, 6), tied=st.booleans())
def test_top_k_equals_the_greedy_walk(seed: int, n_images: int, n_classes: int, k: int, tied: bool) -> None:
    scores = random_scores(seed, n_images, n_classes, tied)
    allowed = np.flatnonzero(np.random.default_rng(seed).random(n_classes) < 0.7)
    allowed = allowed if allowed.size else np.array([0])
    eligible = np.zeros(scores.shape, dtype=bool)
    eligible[:, allowed] = True
    chosen = selection.top_k_per_class(scores, k, allowed=allowed)
    assert as_dict(chosen) == slow_greedy(scores, eligible, k)
    assert chosen.confidence.tolist() == scores[chosen.image_index, chosen.labels].tolist()


@settings(max_examples=60, deadline=None)
@given(**sizes, k=st.integers(1, 6), tied=st.booleans())
def test_top_k_of_the_predicted(seed: int, n_images: int, n_classes: int, k: int, tied: bool) -> None:
    scores = random_scores(seed, n_images, n_classes, tied)
    slow = {}
    for c in range(n_classes):
        own = [i for i in range(n_images) if int(scores[i].argmax()) == c]
        slow |= dict.fromkeys(sorted(own, key=lambda i: (-scores[i, c], i))[:k], c)
    assert as_dict(selection.top_k_per_class(scores, k, predicted_only=True)) == slow


@settings(max_examples=150, deadline=None)
@given(**sizes, k=st.integers(0, 6), tied=st.booleans())
def test_assignment_equals_one_proposal_at_a_time(seed: int, n_images: int, n_classes: int, k: int, tied: bool) -> None:
    preferences = random_scores(seed, n_images, n_classes, tied)
    preferences[random_scores(seed + 1, n_images, n_classes, False) < 0.3] = -np.inf
    priorities = random_scores(seed + 2, n_images, n_classes, tied)
    quota = np.random.default_rng(seed).integers(0, k + 1, n_classes)
    images, labels = selection.assign(preferences, priorities, quota)
    placed = dict(zip(images.tolist(), labels.tolist(), strict=True))
    assert placed == slow_proposals(preferences, priorities, quota)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_images=st.integers(1, 25),
    n_classes=st.integers(2, 6),
    quantiles=st.tuples(st.sampled_from([0.0, 0.3, 0.75, 0.9, 1.0]), st.sampled_from([0.0, 0.5, 0.8, 0.99])),
    restricted=st.booleans(),
    sharp=st.booleans(),
)
def test_candidates_equal_the_loop(
    seed: int, n_images: int, n_classes: int, quantiles: tuple[float, float], restricted: bool, sharp: bool
) -> None:
    rows = random_scores(seed, n_images, n_classes, False) + np.float32(1e-3)
    if sharp:  # probabilities like 1e-7 and highest ones that round to 1
        rows = np.exp(30 * rows).astype(np.float32)
    rows /= rows.sum(axis=1, keepdims=True)
    allowed = [0, n_classes - 1] if restricted else list(range(n_classes))
    fast = selection.candidate_sets(rows, *quantiles, allowed)
    np.testing.assert_array_equal(fast, slow_candidates(rows, *quantiles, allowed))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 3, 8])
def test_balanced_pools_equal_one_proposal_at_a_time(seed: int, k: int) -> None:
    rows = random_scores(seed, 40, 5, False)
    rows /= rows.sum(axis=1, keepdims=True)
    candidates = selection.candidate_sets(rows, 0.9, 0.5)
    wishes = np.where(candidates, rows, -np.inf)
    pools = selection.balanced_pools(rows, candidates, k)
    assert as_dict(pools) == slow_proposals(wishes, rows, np.full(5, k))
    assert as_dict(pools) == slow_greedy(rows, candidates, k)


@pytest.mark.parametrize("seed", range(5))
def test_pools_carry_their_capacity_over_between_rounds(seed: int) -> None:
    """Pools as objects that remember how many images they held, over the rounds of one training."""
    n_images, n_classes, n_rounds = 60, 4, 5
    held: list[int] = [0] * n_classes
    fills = None
    for number in range(1, n_rounds + 1):
        generator = np.random.default_rng([seed, number])
        rows = generator.dirichlet([3.0, 1.0, 0.4, 0.1], n_images).astype(np.float32)  # the last class is starved
        candidates = selection.candidate_sets(rows, 0.6, 0.5)
        k = selection.growing_k(number, n_rounds, n_images, n_classes)
        more = k - max(held)
        places = [min(held[c] + more, k) for c in range(n_classes)]
        slow = slow_proposals(np.where(candidates, rows, -np.inf), rows, np.array(places))
        held = [list(slow.values()).count(c) for c in range(n_classes)]
        pools = selection.balanced_pools(rows, candidates, selection.pool_capacities(k, fills))
        assert as_dict(pools) == slow
        fills = pools.counts()
    assert min(held) < max(held)


@settings(max_examples=100, deadline=None)
@given(n_images=st.integers(1, 3000), n_classes=st.integers(1, 60), n_rounds=st.integers(1, 12))
def test_the_schedule_equals_its_equation(n_images: int, n_classes: int, n_rounds: int) -> None:
    """k_i = floor(i * floor(|U|/n) / C), never more than floor(|U|/C), never less than one."""
    before = 0
    for i in range(1, n_rounds + 1):
        literal = math.floor(i * math.floor(n_images / n_rounds) / n_classes)
        k = selection.growing_k(i, n_rounds, n_images, n_classes)
        assert k == max(1, min(literal, math.floor(n_images / n_classes)))
        assert k >= before
        before = k
