"""Mismatch detection: speed and agreement with the literal Algorithm 1, and memory at scale.

    python benchmarks/mismatch.py             # the two paper sizes, literal against captune
    python benchmarks/mismatch.py --scale     # 200,000 images x 200 classes, and an estimate for a million x 1,000

The literal version clusters from scratch in every round with scikit-learn's KMeans at its default settings (k-means++,
n_init="auto", which is one start). Both run on one thread, and seconds are those of the processor, so that a busy
machine does not change the ratio.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from captune.concepts.clustering import ShrinkingClusters
from captune.concepts.mismatch import PAPER_MISMATCH, MismatchSettings, detect_mismatch, eliminate, predict_zero_shot
from captune.core.arrays import Floats, Ints, unit_rows

LOGIT_SCALE = 100.0
SIZES = {"RESISC45": (6_300, 45, 4, 3), "CUB": (5_994, 200, 2, 2)}
"""Images, classes, worlds, seeds of the literal version."""
WIDTH = 512


class FromScratch(ShrinkingClusters):
    """Clusters that are computed anew in every round."""

    def __init__(self, images: Floats, n_clusters: int, seed: int) -> None:
        self.images, self.seed, self.remaining = images, seed, np.arange(len(images))
        self.fit(n_clusters)

    def fit(self, n_clusters: int) -> None:
        """Cluster the images that are left."""
        k_means = KMeans(n_clusters, random_state=self.seed).fit(self.images[self.remaining])
        self.centroids = k_means.cluster_centers_
        self.owners = k_means.labels_.astype(np.int64)

    def shrink(self, images: Ints, n_clusters: int) -> None:
        """Take images out and cluster the others again."""
        self.remaining = np.setdiff1d(self.remaining, images)
        self.fit(min(n_clusters, len(self.remaining)))


def clustered_features(
    n_images: int, n_classes: int, width: int = WIDTH, seed: int = 0, spread: float = 1.5
) -> tuple[Floats, Floats]:
    """Return images and texts: classes in groups of five that resemble each other, a tenth of the names astray."""
    generator = np.random.default_rng(seed)

    def directions(n: int) -> Floats:
        return unit_rows(generator.standard_normal((n, width), dtype=np.float32))

    groups = directions(max(2, n_classes // 5))
    centers = unit_rows(groups[generator.integers(len(groups), size=n_classes)] + 0.7 * directions(n_classes))
    images = np.empty((n_images, width), dtype=np.float32)
    for start in range(0, n_images, 50_000):
        labels = np.arange(start, min(start + 50_000, n_images)) % n_classes
        images[start : start + 50_000] = unit_rows(centers[labels] + spread * directions(len(labels)))
    texts = unit_rows(centers + directions(n_classes))
    astray = generator.choice(n_classes, max(1, n_classes // 10), replace=False)
    texts[astray] = unit_rows(0.4 * centers[generator.permutation(n_classes)[: len(astray)]] + directions(len(astray)))
    return images, texts


def literal(images: Floats, texts: Floats, seed: int) -> set[int]:
    """Return the classes that the literal version names."""
    threshold = PAPER_MISMATCH.threshold_of(len(texts))
    names = predict_zero_shot(images, texts, LOGIT_SCALE)
    ended = eliminate(texts, names, FromScratch(images, len(texts), seed), threshold, LOGIT_SCALE)
    return set(ended.classes.tolist()) & set(names.least_predicted(threshold).tolist())


def jaccard(pairs: Sequence[tuple[set[int], set[int]]]) -> float:
    """Return the mean overlap of pairs of sets."""
    return float(np.mean([len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs]))


def compare(label: str, n_images: int, n_classes: int, n_worlds: int, n_literal: int, n_ours: int = 6) -> None:
    """Print the ratio of the times and the agreement of the results, over worlds with other features each."""
    slow_seconds, fast_seconds, own, across = [], [], [], []
    for world in range(n_worlds):
        images, texts = clustered_features(n_images, n_classes, seed=world)
        began = time.process_time()
        slow = [literal(images, texts, seed) for seed in range(n_literal)]
        between = time.process_time()
        fast = [
            set(detect_mismatch(images, texts, LOGIT_SCALE, replace(PAPER_MISMATCH, seed=s)).mismatched.tolist())
            for s in range(n_ours)
        ]
        ended = time.process_time()
        slow_seconds.append((between - began) / n_literal)
        fast_seconds.append((ended - between) / n_ours)
        own.append(jaccard(list(itertools.combinations(slow, 2))))
        across.append(jaccard(list(itertools.product(slow, fast))))
        print(f"  world {world}: Jaccard {own[-1]:.3f} literal, {across[-1]:.3f} literal to captune", flush=True)
    print(
        f"{label:9s} {n_images:,} x {WIDTH} x {n_classes}: literal {np.mean(slow_seconds):.1f} s, "
        f"captune {np.mean(fast_seconds):.2f} s, {sum(slow_seconds) / sum(fast_seconds):.0f} times faster; "
        f"mean Jaccard {np.mean(own):.3f} between literal seeds, {np.mean(across):.3f} from literal to captune",
        flush=True,
    )


def peak_gigabytes() -> float:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def measure_scale(n_images: int, n_classes: int, settings: MismatchSettings) -> None:
    """Print the time and memory of one large run, and what they mean for a million images x 1,000 classes."""
    images, texts = clustered_features(n_images, n_classes)
    before, began, wall = peak_gigabytes(), time.process_time(), time.monotonic()
    detect_mismatch(images, texts, LOGIT_SCALE, settings)
    seconds, waited, peak = time.process_time() - began, time.monotonic() - wall, peak_gigabytes()
    print(
        f"{n_images:,} x {WIDTH} x {n_classes}, t = {settings.threshold_of(n_classes)}, {settings.runs} run: "
        f"{seconds:.0f} s of processor time ({waited:.0f} s waited), peak {peak:.2f} GB ({before:.2f} before)"
    )


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description="Mismatch detection against its literal version.")
    parser.add_argument("--scale", action="store_true", help="measure a large run instead")
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--classes", type=int, default=200)
    words = parser.parse_args()
    if words.scale:
        measure_scale(words.images, words.classes, PAPER_MISMATCH)
        return
    with threadpool_limits(1):
        for label, sizes in SIZES.items():
            compare(label, *sizes)


if __name__ == "__main__":
    main()
