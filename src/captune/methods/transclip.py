"""TransCLIP, zero-shot version: a Gaussian mixture with neighbors and the texts as prior (Zanella et al., 2024)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from scipy import sparse

from captune.backbones.base import Backbone
from captune.core.arrays import Floats, softmax_rows, unit_rows
from captune.data.task import AdaptationTask
from captune.embeddings.embed import score
from captune.embeddings.similarity import nearest_neighbors
from captune.methods.base import Context, DescribeSettings, Method
from captune.mixture.gaussian_mixture import MixtureFit
from captune.tuners.base import Tuner
from captune.tuners.gaussian import Gaussian


def neighbor_graph(images: Floats, neighbors: int) -> sparse.csr_matrix:
    """Return the affinities max(0, cosine) of each image to its nearest images, `(images, images)`."""
    n_images = len(images)
    k = min(neighbors, n_images - 1)
    near = nearest_neighbors(images, np.arange(n_images), k)
    affinity = np.maximum(np.einsum("id,ikd->ik", images, images[near]), 0.0)
    rows = np.repeat(np.arange(n_images), k)
    return sparse.csr_matrix((affinity.ravel(), (rows, near.ravel())), shape=(n_images, n_images))


def solve_transclip(
    images: Floats,
    texts: Floats,
    logit_scale: float,
    *,
    neighbors: int = 3,
    n_top: int = 8,
    iterations: int = 10,
    inner_iterations: int = 5,
    density_weight: float = 0.02,
    neighbor_weight: float = 1 / 3,
) -> MixtureFit:
    """Return the assignments of all images and the linear rule without its neighbor term.

    Block coordinate updates of the assignments z, the means and one diagonal covariance of the objective: Gaussian
    log-likelihood, agreement of neighbors with affinity max(0, cosine), and KL divergence to the text probabilities.
    """
    n_images, width = images.shape
    zero_shot = score(images, texts, logit_scale)
    prior = np.log(zero_shot + 1e-12)
    graph = neighbor_graph(images, neighbors)
    n_top = min(n_top, n_images)
    top = np.argpartition(-zero_shot, n_top - 1, axis=0)[:n_top]
    means = unit_rows(images[top].mean(axis=0))
    variance = np.full(width, 1.0 / width, dtype=np.float32)
    z = zero_shot
    for _ in range(iterations):
        weights = np.float32(density_weight) * means / variance
        offsets = -0.5 * (weights * means).sum(axis=1)
        density = images @ weights.T + offsets
        for _ in range(inner_iterations):
            z = softmax_rows(prior + density + neighbor_weight * (graph @ z))
        counts, sums = z.sum(axis=0), z.T @ images
        means = unit_rows(sums / np.maximum(counts, 1e-9)[:, None])
        scatter = (images**2).sum(axis=0) - 2 * (means * sums).sum(axis=0) + (counts[:, None] * means**2).sum(axis=0)
        variance = np.maximum(scatter / n_images, 1e-8).astype(np.float32)
    return MixtureFit(weights, np.asarray(offsets, dtype=np.float32), 1.0, z, iterations)


class TransClip(Method):
    """The published method with its settings, without labels."""

    Settings = DescribeSettings
    solve: ClassVar[Callable[..., MixtureFit]] = staticmethod(solve_transclip)
    """Returns the mixture of images `(images, width)` next to texts `(classes, width)`, at a logit scale."""

    def adapt(self, task: AdaptationTask, backbone: Backbone, context: Context) -> Tuner:
        """Estimate the mixture from all unlabeled images; new images are classified by its linear rule."""
        images = context.embed(backbone, task.unlabeled).vectors
        tuner = Gaussian(backbone, context.align_concepts(task, backbone, self.settings.describe).vocabulary)
        texts = tuner.class_embeddings().cpu().numpy()
        found = self.solve(images, texts, backbone.logit_scale)
        tuner.set_mixture(found)
        predicted = np.bincount(found.probabilities.argmax(axis=1), minlength=len(texts))
        context.record(step="mixture_of_baseline", predicted=predicted.tolist())
        return tuner.to(context.runtime.device)
