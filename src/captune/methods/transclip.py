"""TransCLIP, zero-shot version: a Gaussian mixture with neighbors and the texts as prior (Zanella et al., 2024)."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Floats, softmax_rows, unit_rows
from captune.embeddings.embed import score
from captune.methods._solved_mixture import SolvedMixture, neighbor_graph
from captune.mixture.gaussian_mixture import MixtureFit


class TransClip(SolvedMixture):
    """The published transductive method."""

    def solve(self, images: Floats, texts: Floats, logit_scale: float) -> MixtureFit:
        """Return TransCLIP's mixture."""
        return solve_transclip(images, texts, logit_scale)


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
    text_weight: float = 1.0,
) -> MixtureFit:
    """Return the assignments of all images and the linear rule without its neighbor term.

    Block coordinate updates of the assignments z, the means and one diagonal covariance of the objective: Gaussian
    log-likelihood, agreement of neighbors with affinity max(0, cosine), and KL divergence to the text probabilities.
    """
    n_images, width = images.shape
    zero_shot = score(images, texts, logit_scale)
    prior = text_weight * np.log(zero_shot + 1e-12)
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
    none = np.zeros(len(texts), dtype=np.float32)
    return MixtureFit(weights, np.asarray(offsets, dtype=np.float32), 1.0, z, iterations, none)
