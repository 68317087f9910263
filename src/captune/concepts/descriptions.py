"""The best of several descriptions of a class: the one that points most surely at one cluster (Appendix B)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from captune.concepts.clustering import ShrinkingClusters
from captune.concepts.elimination import match_texts
from captune.core.arrays import Floats, Ints, unit_rows
from captune.core.errors import raise_all


@dataclass(frozen=True)
class ChosenDescription:
    """The description that stands for a class.

    Attributes:
        index: Its position among the class's descriptions.
        probability: That of its best cluster, mean over the runs; 1 when there is one cluster, 0 without images.
        scores: The same for all descriptions of the class, `(descriptions,)`.
    """

    index: int
    probability: float
    scores: Floats


def choose_descriptions(
    image_embeddings: Floats,
    remaining: Ints,
    descriptions: Mapping[int, Floats],
    logit_scale: float,
    *,
    runs: int = 1,
    seed: int = 0,
) -> dict[int, ChosenDescription]:
    """Choose the best description of every class, by class id.

    The remaining images (I_final) are clustered into as many clusters as a class has descriptions, or into single
    images when there are fewer. Each description has a probability for each centroid, the softmax over the centroids
    of the scaled cosine; the description of the most probable pair is chosen. With several runs the probability of
    a description's best centroid is averaged over as many clusterings; one run is the paper. With one description
    there is nothing to choose, and without images the first one is taken.

    Args:
        image_embeddings: All unlabeled images, `(images, width)`.
        remaining: Positions of the images that no well matched class took away.
        descriptions: Embeddings `(descriptions, width)` of the sentences of each class.
        logit_scale: What a cosine is multiplied with before the softmax, 100 for CLIP.
        runs: How many clusterings.
        seed: Seed of the clusters.
    """
    _check_shapes(descriptions, image_embeddings.shape[-1])
    images = np.ascontiguousarray(image_embeddings[remaining], dtype=np.float32)
    centroids: dict[int, list[Floats]] = {}
    chosen = {}
    for class_id, texts in descriptions.items():
        n_clusters = min(len(texts), len(images))
        if n_clusters not in centroids:  # classes with as many descriptions share the clusters
            centroids[n_clusters] = [_cluster(images, n_clusters, seed, run) for run in range(runs)]
        chosen[class_id] = _choose(texts, centroids[n_clusters], logit_scale)
    return chosen


def mean_descriptions(descriptions: Mapping[int, Floats], class_embeddings: Floats | None = None) -> dict[int, Floats]:
    """Return the mean of the descriptions of every class, of length one; with names, the name counts as one more.

    Beyond the paper: nothing is chosen, so nothing can be chosen wrongly.
    """
    width = class_embeddings.shape[-1] if class_embeddings is not None else None
    _check_shapes(descriptions, width)
    sums = {
        class_id: texts.sum(axis=0) + (0 if class_embeddings is None else class_embeddings[class_id])
        for class_id, texts in descriptions.items()
    }
    return {class_id: unit_rows(total) for class_id, total in sums.items()}


def _cluster(images: Floats, n_clusters: int, seed: int, run: int) -> Floats:
    if not n_clusters:
        return np.empty((0, images.shape[1]), dtype=np.float32)
    return ShrinkingClusters(images, n_clusters, np.random.default_rng([seed, run])).centroids


def _choose(texts: Floats, clusterings: list[Floats], logit_scale: float) -> ChosenDescription:
    if not len(clusterings[0]):
        return ChosenDescription(0, 0.0, np.zeros(len(texts), dtype=np.float32))
    matches = [match_texts(texts, centroids, logit_scale) for centroids in clusterings]
    against = np.mean([match.odds_against / (1 + match.odds_against) for match in matches], axis=0)
    similarity = np.mean([match.similarity for match in matches], axis=0)
    # Ordered by the probability against, which is exact where the probability itself rounds to one.
    index = int(np.lexsort((-similarity, against))[0])
    scores = (1 - against).astype(np.float32)
    return ChosenDescription(index, float(scores[index]), scores)


def _check_shapes(descriptions: Mapping[int, Floats], width: int | None) -> None:
    problems = [
        f"class {class_id}: expected embeddings (descriptions, {width or 'width'}) of at least one description, "
        f"got shape {np.shape(texts)}"
        for class_id, texts in descriptions.items()
        if np.ndim(texts) != 2 or not len(texts) or (width is not None and np.shape(texts)[1] != width)
    ]
    raise_all(problems, "These descriptions cannot be compared")
