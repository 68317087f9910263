"""What each rule of the transductive method does: accuracy (%) on the images adapted to, one rule changed at a time.

    python benchmarks/ablations.py BEDS              # every *.npz file in a folder and the embedded world
    python benchmarks/ablations.py BEDS --seeds 1    # the variants of each bed, too
    python benchmarks/ablations.py BEDS --labels 2   # rules for labels, with two random labels per class and five seeds

`benchmarks/beds.py` says what a bed is. The last rows are the change by each rule: the mean over all beds, the worst
and the best bed. A rule or constant whose removal changes nothing should go.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from absent import all_beds
from beds import Bed, variants
from captune.core.arrays import Floats, Ints
from captune.mixture.gaussian_mixture import MixtureSettings, fit_gaussian_mixture
from captune.mixture.label_evidence import LabelEvidence, gather_evidence

HOME = "captune.mixture"
SEEDS = 5


@dataclass(frozen=True)
class Rule:
    """A setting, constant or function that is changed."""

    settings: MixtureSettings | None = None
    place: str = ""
    value: object = None


def same_length(directions: Floats, means: Floats, counts: Floats) -> Floats:
    """Return directions as they are."""
    return directions


def trusting(*args: Any) -> LabelEvidence:  # noqa: ANN401 (those of gather_evidence)
    """Return what labels say, with full trust in every name."""
    found = gather_evidence(*args)
    return replace(found, trust=np.ones_like(found.trust))


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

LABEL_RULES = {
    "default": Rule(),
    "a label counts as one image": Rule(MixtureSettings(labeled_weight=1.0)),
    "a label counts as 20 images": Rule(MixtureSettings(labeled_weight=20.0)),
    "labels without neighbors": Rule(place="label_evidence.MOST_NEIGHBORS", value=0),
    "labels never doubted": Rule(place="label_evidence.DOUBT", value=0.0),
    "labels doubted at one temperature": Rule(place="label_evidence.TEMPERATURES", value=(1.0,)),
    "names trusted whatever labels say": Rule(place="gaussian_mixture.gather_evidence", value=trusting),
    "no least trust": Rule(place="label_evidence.LEAST_TRUST", value=0.001),
    "trust by the class alone": Rule(place="label_evidence.PRIOR_LABELS", value=0.001),
    "trust by all labels alone": Rule(place="label_evidence.PRIOR_LABELS", value=1e6),
}


def draw_labels(bed: Bed, per_class: int, seed: int) -> Ints:
    """Return random images, `per_class` of each class, but no more than half of its images."""
    generator, drawn = np.random.default_rng(seed), []
    for label in np.unique(bed.labels):
        rows = np.flatnonzero(bed.labels == label)
        drawn.append(generator.permutation(rows)[: min(per_class, len(rows) // 2)])
    return np.concatenate(drawn)


def accuracies(bed: Bed, rules: dict[str, Rule], labeled: Ints) -> list[float]:
    """Return the accuracy of zero-shot and of each rule on the images without a label, in percent."""
    rest = np.setdiff1d(np.arange(len(bed.labels)), labeled)
    images, truth = bed.images[rest], bed.labels[rest]
    labels = bed.images[labeled], bed.labels[labeled]

    def accuracy(scores: Floats) -> float:
        return 100 * float(np.mean(scores.argmax(axis=1) == truth))

    found = [accuracy(images @ bed.texts.T)]
    for rule in rules.values():
        with patch(f"{HOME}.{rule.place}", rule.value) if rule.place else nullcontext():
            fit = fit_gaussian_mixture(
                images, bed.texts, bed.logit_scale, rule.settings, labeled=labels[0], labels=labels[1]
            )
        found.append(accuracy(fit.probabilities))
    return found


def cases(folder: Path, seeds: int, labels: int) -> Iterator[tuple[Bed, list[Ints]]]:
    """Yield beds and draws of images that have labels."""
    for bed in all_beds(folder):
        if not labels:
            yield from ((one, [np.arange(0)]) for one in variants(bed, seeds))
            continue
        yield bed, [draw_labels(bed, labels, seed) for seed in range(SEEDS)]
        if bed.described is not None:
            described = replace(bed, name=f"{bed.name}, described", texts=bed.described)
            yield described, [draw_labels(bed, labels, seed) for seed in range(SEEDS)]


def main() -> int:
    """Print a table with one row per bed, and the change by each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with beds as .npz files")
    parser.add_argument("--seeds", type=int, default=0, help="seeds of the variants of each bed; 0 for none")
    parser.add_argument("--labels", type=int, default=0, help="random labels per class, for the rules for labels")
    options = parser.parse_args()
    rules, rows = LABEL_RULES if options.labels else RULES, []
    print("| bed | zero-shot | " + " | ".join(rules) + " |\n" + "|---" * (2 + len(rules)) + "|")
    for bed, draws in cases(options.folder, options.seeds, options.labels):
        rows.append(np.mean([accuracies(bed, rules, labeled) for labeled in draws], axis=0))
        print(f"| {bed.name} | " + " | ".join(f"{number:.1f}" for number in rows[-1]) + " |", flush=True)
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
