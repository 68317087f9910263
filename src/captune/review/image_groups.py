"""Groups of images that belong together by their embeddings, whatever their names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from captune.core.arrays import Bools, Floats, Ints, canonical_order
from captune.core.files import digest
from captune.core.scratch import score_rows
from captune.data.images import ImageCollection

GROUPS_PER_CLASS = 2
FEWEST_PER_GROUP = 5
SAMPLED_PER_CLUSTER, FEWEST_SAMPLED = 24, 4096
"""K-means runs on a sample of at most this many images per cluster; all images are then assigned."""
MOST_ALTERNATIVES = 3


@dataclass(frozen=True, eq=False)
class Group:
    """Images that belong together, the most typical first, with the class that most of them are predicted as.

    `share` of the images have this class, `confidence` is its mean probability, `alternatives` are the next classes
    with their shares, and `n_labeled` images were named one by one. The same images always have the same numbers.
    """

    number: int
    images: Ints
    name: str
    share: float
    confidence: float
    alternatives: tuple[tuple[str, float], ...]
    n_labeled: int

    def __len__(self) -> int:
        return len(self.images)

    def digest(self, images: ImageCollection) -> str:
        """Return what identifies the group: a digest of the names of its images, whatever its number."""
        return digest("\n".join(sorted(images.name(int(i)) for i in self.images)).encode("utf-8", "surrogatepass"), 6)


def count_groups(n_images: int, n_classes: int) -> int:
    """Return the number of groups: a few per class, each with a few images."""
    return max(1, min(GROUPS_PER_CLASS * n_classes, n_images // FEWEST_PER_GROUP))


def cluster(vectors: Floats, n_clusters: int, seed: int, weights: Floats | None = None) -> tuple[Ints, Floats]:
    """Return the K-means cluster of each image and its squared distance to the center, both `(images,)`."""
    from sklearn.cluster import KMeans

    n_clusters = max(1, min(n_clusters, len(vectors)))
    sample = canonical_order(vectors)[: max(FEWEST_SAMPLED, SAMPLED_PER_CLUSTER * n_clusters)]
    means = KMeans(n_clusters, n_init=1, max_iter=30, random_state=seed)
    means.fit(vectors[sample], sample_weight=None if weights is None else weights[sample])
    centers = np.asarray(means.cluster_centers_, dtype=np.float32)
    lengths = np.square(centers).sum(axis=1)
    distances = score_rows(vectors, n_clusters, lambda rows: lengths - 2 * (rows @ centers.T))
    owners = np.asarray(distances.argmin(axis=1), dtype=np.int64)
    return owners, distances.min(axis=1) + np.square(vectors).sum(axis=1)


def describe_groups(
    owners: Ints, distances: Floats, probabilities: Floats, names: tuple[str, ...], is_labeled: Bools
) -> list[Group]:
    """Return all groups with their current names, the largest first within the order of their numbers."""
    predicted = probabilities.argmax(axis=1)
    order = np.lexsort((distances, owners))
    starts = np.flatnonzero(np.diff(owners[order], prepend=-1))
    found = []
    for members in np.split(order, starts[1:]):
        shares = np.bincount(predicted[members], minlength=len(names)) / len(members)
        best = np.argsort(-shares, kind="stable")[: MOST_ALTERNATIVES + 1]
        found.append(
            Group(
                number=int(owners[members[0]]),
                images=members,
                name=names[best[0]],
                share=float(shares[best[0]]),
                confidence=float(probabilities[members, best[0]].mean()),
                alternatives=tuple((names[c], float(shares[c])) for c in best[1:] if shares[c] > 0),
                n_labeled=int(is_labeled[members].sum()),
            )
        )
    return found
