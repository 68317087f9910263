"""What labeled images say about the classes: where they lie, and whether the class texts can be trusted.

A single labeled image may be an odd one, so it counts together with the images around it. Where a class's labeled
images look to the texts like other classes, its name misleads, and its zero-shot estimate counts for less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints, evenly_spaced, softmax_rows
from captune.core.scratch import row_parts

MOST_NEIGHBORS = 10
"""But no more than half of the images that a class has on average."""
NEIGHBOR_SHARE = np.float32(0.8)
"""Weight of the mean of the nearest images, next to the labeled image itself."""
MANY_LABELS = 10
"""With at least so many labels of a class, their mean needs no neighbors."""
MOST_SEARCHED = 8192
LEAST_TRUST = 0.1
PRIOR_LABELS = 1.0
"""Number of labels that the trust in all class texts counts as, next to the labels of a class."""


@dataclass(frozen=True, eq=False)
class LabelEvidence:
    """What labels say.

    Attributes:
        sums: Sums of the centered labeled images, each averaged with its neighbors, `(classes, width)`.
        counts: Number of labels, `(classes,)`.
        trust: How far the labels of a class agree with its text, from 0 to 1; 1 without labels, `(classes,)`.
    """

    sums: Floats
    counts: Floats
    trust: Floats


def gather_evidence(
    images: Floats,
    center: Floats,
    texts: Floats,
    logit_scale: float,
    labeled: Floats,
    labels: Ints,
    is_allowed: NDArray[np.bool_],
) -> LabelEvidence:
    """Return the evidence of labeled images `(labels, width)`, next to unlabeled ones `(images, width)`.

    Unlabeled images have allowed classes only, `(classes,)`, so no others are averaged with them.
    """
    n_classes = len(texts)
    counts = np.bincount(labels, minlength=n_classes).astype(np.float32)
    sums = np.zeros_like(texts)
    if not len(labels):
        return LabelEvidence(sums, counts, np.ones(n_classes, dtype=np.float32))
    is_alone = (counts[labels] < MANY_LABELS) & is_allowed[labels]
    smoothed = np.array(labeled, dtype=np.float32)
    searched = images[evenly_spaced(len(images), MOST_SEARCHED)] if len(images) else images
    k = min(MOST_NEIGHBORS, len(searched) // (2 * max(1, int(is_allowed.sum()))))
    if k:
        means = _mean_of_neighbors(searched, smoothed[is_alone], k)
        smoothed[is_alone] += NEIGHBOR_SHARE * (means - smoothed[is_alone])
    np.add.at(sums, labels, smoothed - center)
    # How probable the label is, compared with what the texts say.
    probabilities = softmax_rows(np.float32(logit_scale) * (labeled @ texts.T))
    agreement = probabilities[np.arange(len(labels)), labels] / probabilities.max(axis=1)
    of_class = np.bincount(labels, weights=agreement, minlength=n_classes)
    trust = (of_class + PRIOR_LABELS * agreement.mean()) / (counts + PRIOR_LABELS)
    trust = np.where(counts > 0, np.maximum(trust, LEAST_TRUST), 1.0)
    return LabelEvidence(sums, counts, trust.astype(np.float32))


def _mean_of_neighbors(searched: Floats, labeled: Floats, k: int) -> Floats:
    """Return the mean of the k images nearest to each labeled image, `(labels, width)`."""
    means = np.empty_like(labeled)
    for rows in row_parts(len(labeled), len(searched)):
        nearest = np.argpartition(-(labeled[rows] @ searched.T), k - 1, axis=1)[:, :k]
        means[rows] = searched[nearest].mean(axis=1)
    return means
