"""What labeled images say about the classes: where they lie, and whether the class texts can be trusted.

A single labeled image may be an odd one, so it counts together with the images around it. Where a class's labeled
images look to the texts like other classes, its name misleads, and its zero-shot estimate counts for less. A label may
be wrong, too: where most labels confirm the texts, one that contradicts them is hardly believed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from captune.core.arrays import Bools, Floats, Ints, evenly_spaced, row_parts, softmax_rows

MOST_NEIGHBORS = 10
"""But no more than half of the images that a class has on average."""
NEIGHBOR_SHARE = np.float32(0.8)
"""Weight of the mean of the nearest images next to the only labeled image of a class; n labels have an n-th of it."""
MANY_LABELS = 10
"""With at least so many labels of a class, their mean needs no neighbors."""
MOST_SEARCHED = 8192
LEAST_TRUST = 0.1
"""Against wrong answers: right ones gain nothing by it."""
DOUBT = 0.05
"""Share of the labels that is expected to be wrong."""
TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Of the texts, next to labels: the one at which the labels are most likely is used."""
PRIOR_LABELS = 1.0
"""Number of labels that the trust in all class texts counts as, next to the labels of a class."""


@dataclass(frozen=True, eq=False)
class LabelEvidence:
    """What labels say.

    Attributes:
        sums: Sums of the centered labeled images, each averaged with its neighbors, `(classes, width)`.
        counts: Number of labels, each as far as it is believed, `(classes,)`.
        trust: How far the labels of a class agree with its text, from 0 to 1; 1 without labels, `(classes,)`.
        contradiction: How far all labels contradict the texts, from 0 to 1.
    """

    sums: Floats
    counts: Floats
    trust: Floats
    contradiction: float = 0.0


def gather_evidence(
    images: Floats, center: Floats, rule: Floats, labeled: Floats, labels: Ints, is_allowed: Bools
) -> LabelEvidence:
    """Return the evidence of labeled images `(labels, width)`, next to unlabeled ones `(images, width)`.

    `rule` are the class texts times the logit scale. Unlabeled images have allowed classes only, `(classes,)`, so no
    others are averaged with them.
    """
    n_classes, sums = len(rule), np.zeros_like(rule)
    counts = np.bincount(labels, minlength=n_classes)
    if not len(labels):
        return LabelEvidence(sums, counts.astype(np.float32), np.ones(n_classes, dtype=np.float32))
    is_alone = (counts[labels] < MANY_LABELS) & is_allowed[labels]
    smoothed, belief = np.array(labeled, dtype=np.float32), np.ones(len(labels), dtype=np.float32)
    searched = images[evenly_spaced(len(images), MOST_SEARCHED)] if len(images) else images
    k = min(MOST_NEIGHBORS, len(searched) // (2 * max(1, int(is_allowed.sum()))))
    if is_alone.any():
        smoothed[is_alone], likely = _look_around(searched, rule, smoothed[is_alone], labels[is_alone], k)
        belief[is_alone] = _belief(likely, n_classes)
    np.add.at(sums, labels, belief[:, None] * (smoothed - center))
    # How probable the label is, compared with what the texts say.
    probabilities = softmax_rows(labeled @ rule.T)
    agreement = probabilities[np.arange(len(labels)), labels] / probabilities.max(axis=1)
    mean_agreement = float(np.average(agreement, weights=belief))
    believed = np.bincount(labels, weights=belief, minlength=n_classes)
    of_class = np.bincount(labels, weights=belief * agreement, minlength=n_classes)
    trust = (of_class + PRIOR_LABELS * mean_agreement) / (believed + PRIOR_LABELS)
    trust = np.where(counts > 0, np.maximum(trust, LEAST_TRUST), 1.0)
    return LabelEvidence(sums, believed.astype(np.float32), trust.astype(np.float32), 1.0 - mean_agreement)


def _look_around(searched: Floats, rule: Floats, labeled: Floats, labels: Ints, k: int) -> tuple[Floats, Floats]:
    """Return labeled images averaged with their neighbors, and how probable the texts find their labels there.

    The latter is the mean over a labeled image and its k nearest images, `(temperatures, labels)`.
    """
    smoothed, share = labeled.copy(), NEIGHBOR_SHARE / np.bincount(labels)[labels].astype(np.float32)
    likely = np.empty((len(TEMPERATURES), len(labels)), dtype=np.float32)
    for rows in row_parts(len(labeled), max(len(searched), (k + 1) * max(rule.shape))):
        around = labeled[rows][:, None]
        if k:
            nearest = np.argpartition(-(labeled[rows] @ searched.T), k - 1, axis=1)[:, :k]
            smoothed[rows] += share[rows, None] * (searched[nearest].mean(axis=1) - smoothed[rows])
            around = np.concatenate([around, searched[nearest]], axis=1)
        scores = around.reshape(-1, labeled.shape[1]) @ rule.T
        places, own = np.arange(len(scores)), np.repeat(labels[rows], k + 1)
        for number, temperature in enumerate(TEMPERATURES):
            probabilities = softmax_rows(scores / np.float32(temperature))[places, own]
            likely[number, rows] = probabilities.reshape(-1, k + 1).mean(axis=1)
    return smoothed, likely


def _belief(likely: Floats, n_classes: int) -> Floats:
    """Return how probable it is that each label is right, `(labels,)`, where a wrong one is any other class.

    If the texts mislead, labels are most likely at a high temperature, at which the texts say nothing against them.
    """
    right = (1.0 - DOUBT) * likely
    wrong = DOUBT / max(1, n_classes - 1) * (1.0 - likely)
    best = int(np.log(right + wrong + 1e-30).sum(axis=1).argmax())
    return np.asarray(right[best] / (right[best] + wrong[best] + 1e-30), dtype=np.float32)
