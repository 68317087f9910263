"""ZLaP: label propagation over a graph of images and class texts (Stojnic et al., CVPR 2024)."""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse

from captune.backbones.base import Backbone
from captune.core.arrays import Floats
from captune.data.task import AdaptationTask
from captune.embeddings.similarity import nearest_neighbors
from captune.methods.base import Context, DescribeSettings, Method
from captune.tuners.base import Tuner
from captune.tuners.propagation import Propagation, PropagationSettings

PRECISION = 1e-8
"""What is left out of the propagated scores, as a share of them."""


class Zlap(Method):
    """A transductive baseline with the published settings for class texts; it uses no labels."""

    Settings = DescribeSettings

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Propagate the class labels of the texts to all unlabeled images; new images ask their neighbors."""
        images = context.embed(backbone, task.unlabeled).vectors
        vocabulary = context.align_concepts(task, backbone, self.settings.describe).vocabulary
        tuner = Propagation(backbone, vocabulary, PropagationSettings(len(images)))
        texts = tuner.class_embeddings().cpu().numpy()
        scores = propagate_labels(images, texts, tuner.settings.neighbors, tuner.settings.gamma)
        tuner.set_nodes(images, scores)
        predicted = scores[len(texts) :].argmax(axis=1)
        context.record(step="zlap", predicted=np.bincount(predicted, minlength=len(texts)).tolist())
        return tuner.to(context.runtime.device)


def propagate_labels(
    images: Floats, texts: Floats, neighbors: int = 5, gamma: float = 5.0, alpha: float = 0.3
) -> Floats:
    """Return the scores of all nodes, class texts first, then images: `(classes + images, classes)`.

    `gamma` is the power of the cosines that weight edges, `alpha` the share of a node's score that comes from its
    neighbors. An image is connected to its nearest images and, searched separately because the modalities lie apart, to
    its nearest texts; texts are not connected with each other. The scores solve (I - alpha W) Z = Y, where W is the
    symmetric normalized adjacency and Y holds a one for each text in the column of its class.
    """
    (n_images, n_classes), n_nodes = (len(images), len(texts)), len(images) + len(texts)
    near = nearest_neighbors(images, np.arange(n_images), neighbors)
    cosines = images @ texts.T
    k = min(neighbors, n_classes)
    near_texts = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
    similarity = [np.einsum("ij,ij->i", images, images[column]) for column in near.T]
    similarity += [cosines[np.arange(n_images), column] for column in near_texts.T]
    columns = [*(n_classes + near.T), *near_texts.T]
    weights = np.maximum(np.concatenate(similarity), 0.0).astype(np.float64) ** gamma
    rows = np.tile(n_classes + np.arange(n_images), len(columns))
    directed = sparse.csr_matrix((weights, (rows, np.concatenate(columns))), shape=(n_nodes, n_nodes))
    adjacency = directed + directed.T
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    scale = sparse.diags(1.0 / np.sqrt(np.where(degrees > 0, degrees, 1.0)))
    received = (alpha * (scale @ adjacency @ scale)).tocsr()
    labels = np.zeros((n_nodes, n_classes))
    labels[np.arange(n_classes), np.arange(n_classes)] = 1.0
    scores = labels
    # The eigenvalues of `received` are at most alpha, so the rounds converge like a geometric series.
    for _ in range(math.ceil(math.log(PRECISION) / math.log(alpha)) if alpha else 0):
        scores = received @ scores + labels
    return np.asarray(scores, dtype=np.float32)
