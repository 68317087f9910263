"""Label propagation over images and class texts against a dense graph, built and solved node by node."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import WIDTH, ToyBackbone

from captune.core.arrays import Floats, unit_rows
from captune.data.vocabulary import Vocabulary
from captune.methods.zlap import propagate_labels
from captune.results.classifier import Classifier
from captune.tuners.propagation import Propagation, PropagationSettings

CASES = [(5, 5.0, 0.3), (2, 3.0, 0.9), (3, 0.0, 0.5), (50, 1.0, 0.3), (4, 5.0, 0.0)]


def draw(n_images: int, n_classes: int, seed: int, width: int = WIDTH) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(seed)
    texts = unit_rows(generator.normal(size=(n_classes, width)).astype(np.float32))
    images = texts[generator.integers(n_classes, size=n_images)] + 0.7 * generator.normal(size=(n_images, width))
    return unit_rows(images.astype(np.float32)), texts


def slow_laplacian(images: Floats, texts: Floats, k: int, gamma: float, alpha: float) -> np.ndarray:
    """Return I - alpha D^-1/2 (S + S^T) D^-1/2, with the texts as first nodes."""
    n_classes, n_nodes = len(texts), len(texts) + len(images)
    edges = np.zeros((n_nodes, n_nodes))
    for i, image in enumerate(images):
        others = sorted((j for j in range(len(images)) if j != i), key=lambda j: -float(image @ images[j]))
        for j in others[:k]:
            edges[n_classes + i, n_classes + j] = max(0.0, float(image @ images[j])) ** gamma
        for c in sorted(range(n_classes), key=lambda c: -float(image @ texts[c]))[:k]:
            edges[n_classes + i, c] = max(0.0, float(image @ texts[c])) ** gamma
    both = edges + edges.T
    found = np.eye(n_nodes)
    for i in range(n_nodes):
        for j in range(n_nodes):
            if both[i, j]:
                found[i, j] -= alpha * both[i, j] / np.sqrt(both[i].sum() * both[j].sum())
    return found


@pytest.mark.parametrize(("k", "gamma", "alpha"), CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_scores_solve_the_linear_system(k: int, gamma: float, alpha: float, seed: int) -> None:
    images, texts = draw(30, 4, seed)
    slow = np.linalg.solve(slow_laplacian(images, texts, k, gamma, alpha), np.eye(34)[:, :4])
    assert np.allclose(propagate_labels(images, texts, k, gamma, alpha), slow, atol=1e-5)


@pytest.mark.parametrize(("k", "gamma", "alpha"), CASES)
def test_new_images_get_the_solution_for_their_neighbors(k: int, gamma: float, alpha: float) -> None:
    """By symmetry, solving for the neighbors of a new image is the same as summing their scores."""
    images, _ = draw(30, 3, 2)
    backbone, vocabulary = ToyBackbone(), Vocabulary(("cat", "dog", "bird"))
    tuner = Propagation(backbone, vocabulary, PropagationSettings(len(images), k, gamma))
    texts = tuner.class_embeddings().numpy()
    tuner.set_nodes(images, propagate_labels(images, texts, k, gamma, alpha))
    new = unit_rows(images[:6] + 0.2)
    found = Classifier.from_tuner(tuner).score_embeddings(new)
    laplacian = slow_laplacian(images, texts, k, gamma, alpha)
    for image, probabilities in zip(new, found, strict=True):
        query = np.zeros(len(laplacian))
        for nodes, offset in ((images, 3), (texts, 0)):
            for j in sorted(range(len(nodes)), key=lambda j: -float(image @ nodes[j]))[:k]:
                query[offset + j] = max(0.0, float(image @ nodes[j])) ** gamma
        scores = np.maximum(np.linalg.solve(laplacian, query)[:3], 1e-12)
        assert np.allclose(probabilities, scores / scores.sum(), atol=1e-4)


def test_images_of_the_graph_keep_their_own_scores() -> None:
    images, _ = draw(30, 3, 3)
    tuner = Propagation(ToyBackbone(), Vocabulary(("cat", "dog", "bird")), PropagationSettings(len(images)))
    scores = propagate_labels(images, tuner.class_embeddings().numpy())
    tuner.set_nodes(images, scores)
    own = torch.from_numpy(scores[3:]).clamp_min(1e-12)
    with torch.inference_mode():
        found = tuner.logits(torch.from_numpy(images), tuner.class_embeddings()).softmax(dim=1)
    assert torch.allclose(found, own / own.sum(dim=1, keepdim=True), atol=1e-6)
