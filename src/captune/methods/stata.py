"""StatA: a Gaussian mixture whose means and variances are anchored at the texts (Zanella et al., 2025)."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Floats, softmax_rows
from captune.embeddings.embed import score
from captune.methods.transclip import TransClip, neighbor_graph
from captune.mixture.gaussian_mixture import MixtureFit

SMALLEST_VARIANCE = 1e-8


def solve_stata(
    images: Floats,
    texts: Floats,
    logit_scale: float,
    *,
    anchor_weight: float = 1.0,
    neighbors: int = 3,
    iterations: int = 10,
    inner_iterations: int = 5,
    density_weight: float = 0.02,
    neighbor_weight: float = 1 / 3,
) -> MixtureFit:
    """Return the assignments of all images, and a linear rule: one variance for all classes, and no neighbors.

    An anchor counts as `anchor_weight` images; `density_weight` is that of TransCLIP.

    Block coordinate updates of the assignments z, the means and a diagonal covariance of each class. A class of n
    expected images has b = n / (n + anchor_weight) of its own mean and variance, and 1 - b of its anchor: the text, and
    the variance of all images around the texts that zero-shot assigns them to.
    """
    n_images = len(images)
    zero_shot = score(images, texts, logit_scale)
    prior, squares = np.log(zero_shot + 1e-12), images**2
    graph = neighbor_graph(images, neighbors)
    anchor = _scatter(zero_shot, images, squares, texts).sum(axis=0) / n_images
    means, variances, z = texts, np.broadcast_to(anchor, texts.shape), zero_shot
    for _ in range(iterations):
        density = images @ (means / variances).T - 0.5 * (squares @ (1 / variances).T)
        density -= 0.5 * (means**2 / variances + np.log(variances)).sum(axis=1)
        for _ in range(inner_iterations):
            z = softmax_rows(prior + np.float32(density_weight) * density + neighbor_weight * (graph @ z))
        counts = z.sum(axis=0)[:, None]
        own = counts / (counts + anchor_weight)
        means = own * (z.T @ images) / np.maximum(counts, 1e-9) + (1 - own) * texts
        variances = own * _scatter(z, images, squares, means) / np.maximum(counts, 1e-9)
        variances = np.maximum(variances + (1 - own) * (anchor + (texts - means) ** 2), SMALLEST_VARIANCE)
    shared = np.average(variances, axis=0, weights=z.sum(axis=0))
    weights = np.asarray(density_weight * means / shared, dtype=np.float32)
    offsets = np.asarray(-0.5 * (weights * means).sum(axis=1), dtype=np.float32)
    return MixtureFit(weights, offsets, 1.0, z, iterations)


def _scatter(z: Floats, images: Floats, squares: Floats, means: Floats) -> Floats:
    """Return the sums of squared distances to each class's mean, weighted by assignments, `(classes, width)`."""
    return z.T @ squares - 2 * means * (z.T @ images) + z.sum(axis=0)[:, None] * means**2


class StatA(TransClip):
    """The baseline for collections that show some of the names only."""

    solve = staticmethod(solve_stata)
