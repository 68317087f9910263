"""The accuracy estimate on real predictions: does its 95 % interval cover the truth, and how wide is it?

    python benchmarks/estimate.py BEDS --repetitions 1000

BEDS has beds as .npz files (see benchmarks/beds.py). Predictions are those of `transductive` without labels. The exit
code says whether every interval of accuracy covers the truth in at least 93 %.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from beds import read_bed
from captune.mixture.gaussian_mixture import fit_gaussian_mixture
from captune.review.estimate import draw_checks, estimate_accuracy, random_numbers


def main() -> int:
    """Print one row per bed and number of checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repetitions", type=int, default=1000)
    options = parser.parse_args()
    is_right = True
    print(f"{'':16} checks   truth    mean  coverage  half-width  balanced: coverage")
    for path in sorted(options.folder.glob("*.npz")):
        bed = read_bed(path)
        probabilities = fit_gaussian_mixture(bed.images, bed.texts, bed.logit_scale).probabilities
        predicted = probabilities.argmax(axis=1)
        truth, is_free = float(np.mean(predicted == bed.labels)), np.ones(len(predicted), dtype=np.bool_)
        recall = np.array([np.mean(predicted[bed.labels == c] == c) for c in range(len(bed.texts))])
        for n_checks in (10, 50, 200):
            found, truths = [], []
            for seed in range(options.repetitions):
                rows = draw_checks(random_numbers(bed.images, seed), is_free, n_checks)
                found.append(estimate_accuracy(predicted[rows], bed.labels[rows]))
                truths.append(float(recall[np.unique(bed.labels[rows])].mean()))
            coverage = float(np.mean([e.low <= truth <= e.high for e in found]))
            half = float(np.mean([(e.high - e.low) / 2 for e in found]))
            within = [e.balanced_low <= t <= e.balanced_high for e, t in zip(found, truths, strict=True)]
            balanced = float(np.mean(within))
            mean = float(np.mean([e.accuracy for e in found]))
            print(
                f"{bed.name:16} {n_checks:6} {truth:7.3f} {mean:7.3f} {coverage:9.3f} {half:11.3f} {balanced:19.3f}",
                flush=True,
            )
            is_right &= coverage >= 0.93
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
