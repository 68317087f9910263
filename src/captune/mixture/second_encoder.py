"""How much a second image encoder counts, decided without labels.

The mixture is fitted with several weights. True classes are neighborhoods in both spaces, whereas mistakes of one
encoder are neighborhoods in its own space only. The second encoder is used if its neighbors support the classes that
are found without it (it sees the same thing, and not the camera or the background), and if with it neighbors share
their class more often, in its own space at least as often as in the first.
"""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Floats, canonical_order
from captune.embeddings.similarity import nearest_neighbors, neighbor_agreement
from captune.mixture.gaussian_mixture import fit_gaussian_mixture

WEIGHTS = (1.0, 2.0, 4.0)
MOST_IMAGES, MOST_QUERIES, N_NEIGHBORS, FEWEST_IMAGES = 5000, 1000, 10, 50
SUPPORT = 0.7
"""Agreement of neighbors in the second space without it, as a share of the agreement in the first, that is required."""
RISE = 0.01
"""Relative rise of the agreement, summed over both spaces, that is required."""


def choose_weight(first: Floats, second: Floats, texts: Floats, logit_scale: float) -> float:
    """Return the weight of the second encoder's embeddings beside the first's, 0 to leave them out.

    Embeddings are `(images, width)` of the same images, texts `(classes, width)` of the first space.
    """
    if len(first) < FEWEST_IMAGES:
        return 0.0
    rows = canonical_order(first)[:MOST_IMAGES]  # whatever the order of the images is
    first, second, queries = first[rows], second[rows], np.arange(min(len(rows), MOST_QUERIES))
    near = [nearest_neighbors(space, queries, N_NEIGHBORS) for space in (first, second)]
    padded = np.pad(texts, ((0, 0), (0, second.shape[1])))

    def agreement(weight: float) -> tuple[float, float]:
        length = np.float32(np.sqrt(1 + weight**2))
        images = np.hstack([first, np.float32(weight) * second]) / length if weight else first
        fit = fit_gaussian_mixture(images, padded if weight else texts, logit_scale * float(length))
        labels = fit.probabilities.argmax(axis=1)
        return neighbor_agreement(labels, queries, near[0]), neighbor_agreement(labels, queries, near[1])

    before = agreement(0.0)
    chosen, highest = 0.0, (1 + RISE) * sum(before)
    if before[1] < SUPPORT * before[0]:
        return chosen
    for weight in WEIGHTS:
        own, other = agreement(weight)
        if other >= own and own + other > highest:
            chosen, highest = weight, own + other
    return chosen
