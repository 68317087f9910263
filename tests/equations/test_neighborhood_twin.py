"""The neighbor consensus against loops over images, neighbors and classes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from captune.core.arrays import softmax_rows, unit_rows
from captune.labeling.neighborhood import SHARPNESS, balance, neighbor_consensus, neighbor_graph, propagate


def slow_graph(embeddings: np.ndarray, n_neighbors: int) -> list[dict[int, float]]:
    graph = []
    for i, row in enumerate(embeddings):
        cosines = {j: float(row @ other) for j, other in enumerate(embeddings) if j != i}
        nearest = sorted(cosines, key=lambda j: -cosines[j])[:n_neighbors]
        force = {j: math.exp(SHARPNESS * cosines[j]) for j in nearest}
        graph.append({j: value / sum(force.values()) for j, value in force.items()})
    return graph


def slow_propagate(probabilities: np.ndarray, graph: list[dict[int, float]], rounds: int, own: float) -> np.ndarray:
    mixed = [list(row) for row in probabilities]
    for _ in range(rounds):
        mixed = [
            [
                (1 - own) * sum(weight * mixed[j][c] for j, weight in graph[i].items())
                + own * float(probabilities[i][c])
                for c in range(probabilities.shape[1])
            ]
            for i in range(len(probabilities))
        ]
    return np.array(mixed)


def slow_balance(probabilities: np.ndarray, strength: float, rounds: int) -> np.ndarray:
    rows = [[float(value) for value in row] for row in probabilities]
    for _ in range(rounds):
        taken = [sum(row[c] for row in rows) for c in range(len(rows[0]))]
        rows = [[value / taken[c] ** strength for c, value in enumerate(row)] for row in rows]
        rows = [[value / sum(row) for value in row] for row in rows]
    return np.array(rows)


@pytest.mark.parametrize("seed", range(3))
def test_consensus_is_what_the_loops_say(seed: int) -> None:
    generator = np.random.default_rng(seed)
    embeddings = unit_rows(generator.normal(size=(30, 6)).astype(np.float32))
    probabilities = softmax_rows(generator.normal(size=(30, 4)).astype(np.float32) * 2)
    graph, literal = neighbor_graph(embeddings, 5), slow_graph(embeddings, 5)
    for i in range(30):
        found = dict(zip(graph.neighbors[i].tolist(), graph.weights[i].tolist(), strict=True))
        assert found == pytest.approx(literal[i], abs=1e-5)
    mixed = propagate(probabilities, graph, rounds=4, own=0.2)
    assert np.allclose(mixed, slow_propagate(probabilities, literal, 4, 0.2), atol=1e-5)
    assert np.allclose(balance(mixed, 0.5, 3), slow_balance(mixed, 0.5, 3), atol=1e-5)


def test_labeled_images_vote_and_get_no_result() -> None:
    drawn = np.random.default_rng(0)
    centers = np.eye(2, 6)
    vectors = np.concatenate([centers[c] + 0.05 * drawn.normal(size=(12, 6)) for c in (0, 1)])
    labeled = centers[[0, 0, 1, 1]] + 0.05 * drawn.normal(size=(4, 6))
    everyone = np.concatenate([vectors, labeled])
    everyone = (everyone / np.linalg.norm(everyone, axis=1, keepdims=True)).astype(np.float32)
    misled = np.array([[0.45, 0.55], [0.55, 0.45]], dtype=np.float32).repeat(12, axis=0)  # names are swapped
    known = np.eye(2, dtype=np.float32)[[0, 0, 1, 1]]
    graph = neighbor_graph(everyone, 15)
    right = np.repeat([0, 1], 12)
    voted = neighbor_consensus(misled, graph, 0.5, known)
    assert voted.shape == misled.shape
    assert (voted.argmax(axis=1) == right).all()
    alone = neighbor_consensus(misled, neighbor_graph(everyone[:24], 10), 0.5)
    assert (alone.argmax(axis=1) != right).all()
