"""How much a second image encoder counts, decided without labels.

The mixture is fitted with several weights. True classes are neighborhoods in both spaces, whereas mistakes of one
encoder are neighborhoods in its own space only. A weight is therefore good if the classes it leads to are shared by
nearest neighbors more often, summed over both spaces. Classes that the first space contradicts are rejected, so that a
second encoder that sees something else (the camera, the background) is not used.
"""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Floats, canonical_order
from captune.labeling.neighbors import nearest_neighbors, neighbor_agreement
from captune.mixture.gaussian_mixture import fit_gaussian_mixture

WEIGHTS, LARGEST_OF_WEAKER = (1.0, 2.0, 4.0), 2.0
"""Weights that are tried; a second space that agrees less than the first gets at most the last."""
MOST_IMAGES, MOST_QUERIES, N_NEIGHBORS, FEWEST_IMAGES = 5000, 1000, 10, 50
BETTER, WORSE = 0.01, 0.05
"""Relative rise of the agreement that is required: little if the second space agrees more than the first, else more."""
MOST_LOST = 0.4
"""Share of the agreement in the first space that may be lost; measured, anything from 0.1 to 0.7 decides the same."""


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
    chosen, highest = 0.0, 0.0
    for weight in WEIGHTS:
        own, other = agreement(weight)
        is_weaker = other < own
        if (is_weaker and weight > LARGEST_OF_WEAKER) or own < (1 - MOST_LOST) * before[0]:
            continue
        if own + other > max((1 + (WORSE if is_weaker else BETTER)) * sum(before), highest):
            chosen, highest = weight, own + other
    return chosen
