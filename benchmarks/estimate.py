"""The accuracy estimate on real predictions: does its 95 % interval cover the truth, and how wide is it?

    python benchmarks/estimate.py BEDS --repetitions 1000

BEDS has beds as .npz files (see benchmarks/beds.py). Predictions are those of `transductive` without labels. The exit
code says whether every interval of accuracy covers the truth in at least 93 %, and is no wider at 50 checks than that
of a simple random sample (the interval of Clopper and Pearson, mean over the repetitions).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from beds import read_bed
from captune.mixture.gaussian_mixture import fit_gaussian_mixture
from captune.review.estimate import draw_checks, estimate_accuracy, exact_interval


def main() -> int:
    """Print one row per bed and number of checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repetitions", type=int, default=1000)
    options = parser.parse_args()
    is_right = True
    print(f"{'':16} checks   truth    mean  coverage  half-width  of a simple sample  balanced: coverage")
    for path in sorted(options.folder.glob("*.npz")):
        bed = read_bed(path)
        probabilities = fit_gaussian_mixture(bed.images, bed.texts, bed.logit_scale).probabilities
        predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
        everything, truth = np.arange(len(predicted)), float(np.mean(predicted == bed.labels))
        recall = np.array([np.mean(predicted[bed.labels == c] == c) for c in range(len(bed.texts))])
        for n_checks in (10, 50, 200):
            found, simple, truths = [], [], []
            for seed in range(options.repetitions):
                rows = draw_checks(predicted, confidence, everything, 0, n_checks, seed)
                found.append(estimate_accuracy(predicted[rows], confidence[rows], bed.labels[rows]))
                truths.append(float(recall[np.unique(bed.labels[rows])].mean()))
                drawn = np.random.default_rng(seed).choice(len(predicted), n_checks, replace=False)
                low, high = exact_interval(float(np.mean(predicted[drawn] == bed.labels[drawn])), n_checks)
                simple.append((high - low) / 2)
            known = [estimate for estimate in found if estimate is not None]
            coverage = float(np.mean([e.low <= truth <= e.high for e in known]))
            half = float(np.mean([(e.high - e.low) / 2 for e in known]))
            within = [e.balanced_low <= t <= e.balanced_high for e, t in zip(known, truths, strict=True)]
            balanced = float(np.mean(within))
            mean = float(np.mean([e.accuracy for e in known]))
            print(
                f"{bed.name:16} {n_checks:6} {truth:7.3f} {mean:7.3f} {coverage:9.3f} {half:11.3f} "
                f"{np.mean(simple):19.3f} {balanced:19.3f}",
                flush=True,
            )
            is_right &= coverage >= 0.93 and (n_checks != 50 or half <= float(np.mean(simple)) + 1e-9)
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
