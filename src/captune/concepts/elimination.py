"""One run of Algorithm 1: the best matched class leaves with its images, round after round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Floats, Ints

_CHUNK_FLOATS = 1 << 22


class Clusters(Protocol):
    """Clusters of the images that remain."""

    centroids: Floats

    def members(self, cluster: int) -> Ints:
        """Return the positions of the images of a cluster."""
        ...

    def remaining(self) -> Ints:
        """Return the positions of all images that are left."""
        ...

    def shrink(self, images: Ints) -> None:
        """Take images out and cluster the others again, with one cluster fewer."""
        ...


@dataclass(frozen=True)
class NamesAlone:
    """Zero-shot predictions without the `(images, classes)` matrix; classes are positions among those taking part."""

    predicted: Ints
    odds_against: Floats
    """(1 - p) / p of the predicted class, which still tells images apart where p rounds to one."""
    log_totals: Floats
    """Logarithm of the softmax's denominator for every image."""
    counts: Ints
    mean_probability: Floats

    def fewest(self, n_classes: int) -> Ints:
        """Return the classes with the fewest predicted images; among equals, those of the least probability first."""
        return np.asarray(np.lexsort((self.mean_probability, self.counts))[:n_classes], dtype=np.int64)


@dataclass(frozen=True)
class TextMatches:
    """The best centroid of every text, `(texts,)`.

    A probability near one is a tie in floating point long before it is one in truth, so matches are compared by the
    odds against them, (1 - p) / p.
    """

    centroid: Ints
    odds_against: NDArray[np.float64]
    similarity: NDArray[np.float64]


@dataclass(frozen=True)
class Elimination:
    """What one run leaves: classes and images at the end, and the classes in the order in which they left."""

    classes: Ints
    images: Ints
    left: Ints


def read_names(images: Floats, class_embeddings: Floats, logit_scale: float) -> NamesAlone:
    """Predict every image from the class names, in chunks."""
    n_images, n_classes = len(images), len(class_embeddings)
    predicted = np.empty(n_images, dtype=np.int64)
    odds_against, log_totals = np.empty(n_images, dtype=np.float32), np.empty(n_images, dtype=np.float32)
    mass = np.zeros(n_classes, dtype=np.float64)
    step = max(1, _CHUNK_FLOATS // n_classes)
    for start in range(0, n_images, step):
        part = slice(start, start + step)
        scores = logit_scale * (images[part] @ class_embeddings.T)
        predicted[part], best = scores.argmax(axis=1), scores.max(axis=1)
        weights = np.exp(scores - best[:, None])
        weights[np.arange(len(weights)), predicted[part]] = 0
        odds_against[part] = weights.sum(axis=1)
        weights[np.arange(len(weights)), predicted[part]] = 1
        totals = 1 + odds_against[part]
        log_totals[part] = best + np.log(totals)
        mass += (weights / totals[:, None]).sum(axis=0)
    counts = np.bincount(predicted, minlength=n_classes).astype(np.int64)
    mean_probability = (mass / max(1, n_images)).astype(np.float32)
    return NamesAlone(predicted, odds_against, log_totals, counts, mean_probability)


def match_texts(texts: Floats, centroids: Floats, logit_scale: float) -> TextMatches:
    """Find the most probable centroid of every text, softmax over the centroids of the scaled cosine."""
    lengths = np.linalg.norm(centroids, axis=1, keepdims=True)
    cosines = texts.astype(np.float64) @ (centroids / np.maximum(lengths, 1e-12)).T.astype(np.float64)
    each, nearest = np.arange(len(texts)), cosines.argmax(axis=1)
    similarity = cosines[each, nearest]
    others = np.exp(logit_scale * (cosines - similarity[:, None]))
    others[each, nearest] = 0
    return TextMatches(nearest, others.sum(axis=1), similarity)


def best_pair(texts: Floats, centroids: Floats, logit_scale: float) -> tuple[int, int]:
    """Return the text and the centroid of the highest probability; among equals the most similar, then the first."""
    matches = match_texts(texts, centroids, logit_scale)
    text = int(np.lexsort((-matches.similarity, matches.odds_against))[0])
    return text, int(matches.centroid[text])


def leaving_images(
    images: Floats,
    text: Floats,
    label: int,
    members: Ints,
    remaining: Ints,
    names: NamesAlone,
    limit: int,
    scale: float,
) -> Ints:
    """Return the images that leave with a class: those of its cluster predicted as it, the most confident first.

    When no image of the cluster is predicted as the class, the remaining image that is most confident of it leaves.
    """
    both = members[names.predicted[members] == label]
    if len(both):
        return both[np.argsort(names.odds_against[both], kind="stable")[:limit]]
    step = max(1, _CHUNK_FLOATS // len(text))
    parts = [images[remaining[start : start + step]] @ text for start in range(0, len(remaining), step)]
    log_probability = scale * np.concatenate(parts) - names.log_totals[remaining]
    return remaining[[int(log_probability.argmax())]]


def eliminate(
    images: Floats, texts: Floats, names: NamesAlone, clusters: Clusters, threshold: int, logit_scale: float
) -> Elimination:
    """Run Algorithm 1 with the removal rule of Appendix B; classes are positions in `texts`."""
    active = np.arange(len(texts), dtype=np.int64)
    left: list[int] = []
    remaining = clusters.remaining()
    while len(active) >= threshold and len(active) and len(remaining):
        row, cluster = best_pair(texts[active], clusters.centroids, logit_scale)
        best = int(active[row])
        limit = max(1, len(remaining) // len(active))  # s of Appendix B
        leaving = leaving_images(
            images, texts[best], best, clusters.members(cluster), remaining, names, limit, logit_scale
        )
        clusters.shrink(leaving)
        active, remaining = np.delete(active, row), clusters.remaining()
        left.append(best)
    if len(active) >= threshold:  # fewer images than classes: no image is left to compare with
        rank = np.argsort(names.fewest(len(texts)))
        active = np.sort(active[np.argsort(rank[active])[: max(0, threshold - 1)]])
    return Elimination(active, remaining, np.array(left, dtype=np.int64))
