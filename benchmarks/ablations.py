"""What each rule of the transductive method does: accuracy (%) on the images adapted to, one rule changed at a time.

    python benchmarks/ablations.py BEDS              # every *.npz file in a folder and the embedded world
    python benchmarks/ablations.py BEDS --seeds 1    # the variants of each bed, too

`benchmarks/beds.py` says what a bed is. The last rows are the change by each rule: the mean over all beds, the worst
and the best bed. A rule or constant whose removal changes nothing should go.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from absent import all_beds
from beds import Bed, variants
from captune.core.arrays import Floats
from captune.mixture import gaussian_mixture
from captune.mixture.gaussian_mixture import MixtureSettings, fit_gaussian_mixture

HOME = "captune.mixture"


@dataclass(frozen=True)
class Rule:
    """A setting, constant or function that is changed."""

    settings: MixtureSettings | None = None
    place: str = ""
    value: object = None


def same_length(directions: Floats, means: Floats, counts: Floats) -> Floats:
    """Return directions as they are."""
    return directions


RULES = {
    "default": Rule(),
    "no name left out": Rule(MixtureSettings(absent_names=False)),
    "sizes not evened out": Rule(MixtureSettings(even_out=False)),
    "directions of any length": Rule(place="gaussian_mixture._equal_length", value=same_length),
    "weight regardless of images": Rule(MixtureSettings(half_weight_at=0.0)),
    "hardly a pull to the start": Rule(MixtureSettings(alpha=0.1)),
    "nearly spherical covariance": Rule(MixtureSettings(shrinkage=0.99)),
    "hardly shrunk covariance": Rule(MixtureSettings(shrinkage=0.3)),
}


def accuracies(bed: Bed) -> list[float]:
    """Return the accuracy of zero-shot and of each rule, in percent."""

    def accuracy(scores: Floats) -> float:
        return 100 * float(np.mean(scores.argmax(axis=1) == bed.labels))

    found = [accuracy(bed.images @ bed.texts.T)]
    for rule in RULES.values():
        fit: Callable[..., gaussian_mixture.MixtureFit] = fit_gaussian_mixture
        if rule.place:
            with patch(f"{HOME}.{rule.place}", rule.value):
                found.append(accuracy(fit(bed.images, bed.texts, bed.logit_scale, rule.settings).probabilities))
        else:
            found.append(accuracy(fit(bed.images, bed.texts, bed.logit_scale, rule.settings).probabilities))
    return found


def main() -> int:
    """Print a table with one row per bed, and the change by each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    parser.add_argument("--seeds", type=int, default=0, help="seeds of the variants of each bed; 0 for none")
    options = parser.parse_args()
    print("| bed | zero-shot | " + " | ".join(RULES) + " |\n" + "|---" * (2 + len(RULES)) + "|")
    rows = []
    for bed in all_beds(options.folder):
        for one in variants(bed, options.seeds):
            rows.append(accuracies(one))
            print(f"| {one.name} | " + " | ".join(f"{number:.1f}" for number in rows[-1]) + " |", flush=True)
    changes = np.asarray(rows)[:, 1:] - np.asarray(rows)[:, 1:2]
    for title, values in (
        ("mean", changes.mean(axis=0)),
        ("worst", changes.min(axis=0)),
        ("best", changes.max(axis=0)),
    ):
        print(f"| {title} change | | " + " | ".join(f"{number:+.1f}" for number in values) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
