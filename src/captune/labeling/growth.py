"""How the pseudo-labeled images D_PL grow during the training of CAP: as published, and as in the authors' code."""

from __future__ import annotations

import numpy as np

from captune.core.arrays import Floats, Ints
from captune.labeling.pseudo_labels import PseudoLabels, Source
from captune.labeling.selection import Classes, top_k_per_class

MOST_PER_CLASS = 1000
"""The authors' code never pseudo-labels more images of a class."""
FULL_SIZE_AT = 0.7
"""The share of the epochs after which the authors' code reaches its largest number of images per class."""


def add_confident(
    current: PseudoLabels, probabilities: Floats, n_new: int, allowed: Classes, epoch: int
) -> PseudoLabels:
    """Return D_PL with the n most confident new images of each class added (Appendix B).

    `probabilities` are those of all unlabeled images; an image can be added to the class it is predicted as.
    """
    unused = np.setdiff1d(np.arange(len(probabilities)), current.image_index)
    new = top_k_per_class(probabilities[unused], n_new, allowed, predicted_only=True)
    return current.extend(new.reindexed(unused).stamped(epoch, Source.MODEL))


def released_size(k: int, epoch: int, epochs: int, n_images: int, n_classes: int, share: float = 0.8) -> int:
    """Return the number of images per class after an epoch, counted from 0, as in the authors' code.

    It goes from k to `share` of an even split of the images in a straight line, and then stays there.
    """
    most = min(MOST_PER_CLASS, int(share * (n_images // n_classes)))
    return max(1, k + int((most - k) * min(1.0, epoch / (FULL_SIZE_AT * epochs))))


def rotate(
    current: PseudoLabels, images: Ints, probabilities: Floats, k: int, tau: float, allowed: Classes, epoch: int
) -> PseudoLabels:
    """Return k images per class, new ones before those that were in D_PL already, as in the authors' code.

    New images are those among `images` that are not in D_PL and are predicted as the class with a probability of at
    least tau. If they are fewer than k, the class keeps images of the current D_PL: those added last and, among
    these, the most confident.
    """
    is_new = ~np.isin(images, current.image_index) & (probabilities.max(axis=1, initial=0.0) >= tau)
    new = top_k_per_class(probabilities[is_new], k, allowed, predicted_only=True)
    new = new.reindexed(images[is_new]).stamped(epoch, Source.MODEL)
    order = np.lexsort((current.image_index, -current.confidence, -current.round, current.labels))
    labels = current.labels[order]
    rank = np.arange(len(order)) - np.searchsorted(labels, labels)
    return new.extend(current.subset(order[rank < k - new.counts()[labels]]))
