"""What each rule of the transductive method does: accuracy (%) on the images adapted to, one rule changed at a time.

    python benchmarks/ablations.py CLIP_FOLDER              # the embedded world and every *.npz file in a folder
    python benchmarks/ablations.py CLIP_FOLDER --seeds 1    # the mean over the variants of each bed, too

`benchmarks/beds.py` says what a bed is.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from beds import Bed, make_world, read_bed, variants
from captune.mixture.gaussian_mixture import MixtureSettings, fit_gaussian_mixture

RULES = {
    "default": MixtureSettings(),
    "sizes not evened out": MixtureSettings(even_out=False),
    "no label-shift step": MixtureSettings(label_shift_steps=0),
    "three label-shift steps": MixtureSettings(label_shift_steps=3),
    "weight regardless of images": MixtureSettings(half_weight_at=0.0),
    "no pull to the start": MixtureSettings(alpha=0.1),
    "nearly spherical covariance": MixtureSettings(shrinkage=0.99),
    "hardly shrunk covariance": MixtureSettings(shrinkage=0.3),
}


def accuracies(bed: Bed) -> list[float]:
    """Return the accuracy of zero-shot and of each rule, in percent."""
    found = [bed.images @ bed.texts.T]
    found += [
        fit_gaussian_mixture(bed.images, bed.texts, bed.logit_scale, rule).probabilities for rule in RULES.values()
    ]
    return [100 * float(np.mean(scores.argmax(axis=1) == bed.labels)) for scores in found]


def main() -> int:
    """Print a table with one row per bed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    parser.add_argument("--seeds", type=int, default=0, help="seeds of the variants of each bed; 0 for none")
    options = parser.parse_args()
    print("| bed | zero-shot | " + " | ".join(RULES) + " |\n" + "|---" * (2 + len(RULES)) + "|")
    for bed in (make_world(), *map(read_bed, sorted(options.folder.glob("*.npz")))):
        kinds = [bed]
        if bed.described is not None:
            kinds.append(replace(bed, name=f"{bed.name}, described", texts=bed.described))
        for kind in kinds:
            rows = [accuracies(one) for one in variants(kind, options.seeds)]
            print(f"| {kind.name} | " + " | ".join(f"{number:.1f}" for number in rows[0]) + " |", flush=True)
            if rows[1:]:
                means = np.mean(rows[1:], axis=0)
                print(
                    f"| {kind.name}, variants | " + " | ".join(f"{number:.1f}" for number in means) + " |", flush=True
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
