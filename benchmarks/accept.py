"""Accepted labels on real predictions: is the promised precision kept, and for how many images?

    python benchmarks/accept.py BEDS --repetitions 1000

BEDS has beds as .npz files (see benchmarks/beds.py). Predictions are those of `transductive`. A repetition draws other
random numbers, a person answers the checks of the first look, and labels are accepted. Four situations: without
answers; after 42 suggested images were answered; after images were added (labels of a random half were asked for first,
and its checks are used again; the look pays if nothing was accepted there); and with 5 % wrong answers. For each of
them: share of the images that is accepted, share of the repetitions in which the promise is kept (of all accepted
labels, and of those that are predictions), and what plain rules give: `ceiling` knows all labels, `half` tests the more
confident half with a binomial tail. The exit code says whether the promise is kept in 95 %, if all answers are right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import binom

from beds import Bed
from captune.core.arrays import Bools, Floats, Ints
from captune.mixture.gaussian_mixture import fit_gaussian_mixture
from captune.review.accept import Acceptance, Population, accept, checks_of_stage
from labels import answer, open_bed, read_all

N_ANSWERS = 42
SESSIONS = 10


@dataclass(frozen=True, eq=False)
class Situation:
    """Predictions whose labels are to be accepted: all arrays `(images,)`."""

    name: str
    confidence: Floats
    is_right: Bools
    is_labeled: Bools
    first: Situation | None = None
    """The half that was looked at before; its images are the first ones."""
    wrong: float = 0.0


def situations(bed: Bed) -> Iterator[Situation]:
    """Yield the four situations; several sessions with answers."""
    nobody = np.zeros(len(bed.labels), dtype=np.bool_)
    probabilities = fit_gaussian_mixture(bed.images, bed.texts, bed.logit_scale).probabilities
    plain = Situation("no answers", probabilities.max(axis=1), probabilities.argmax(axis=1) == bed.labels, nobody)
    yield plain
    yield replace(_shuffled(plain, bed), name="images added")
    yield replace(plain, name="5 % wrong", wrong=0.05)
    for seed in range(SESSIONS):
        session = open_bed(bed, seed)
        chosen = np.array([suggestion.position for suggestion in session.suggest(N_ANSWERS, checks=0.0)])
        session.label(answer(bed, chosen, 0.0, np.random.default_rng(seed)))
        is_labeled = nobody.copy()
        is_labeled[chosen] = True
        found = session.predictions
        yield Situation("42 answers", found.confidence, found.labels == bed.labels, is_labeled)


def _shuffled(plain: Situation, bed: Bed) -> Situation:
    """Return the images in random order, and what the mixture finds for the first half alone."""
    order = np.random.default_rng(0).permutation(len(bed.labels))
    half = order[: len(order) // 2]
    probabilities = fit_gaussian_mixture(bed.images[half], bed.texts, bed.logit_scale).probabilities
    is_right = probabilities.argmax(axis=1) == bed.labels[half]
    first = Situation("half", probabilities.max(axis=1), is_right, plain.is_labeled[half])
    return replace(plain, confidence=plain.confidence[order], is_right=plain.is_right[order], first=first)


def look(
    situation: Situation, numbers: Ints, outcome: Ints, precision: float, version: int, generator: np.random.Generator
) -> Acceptance:
    """Check what is missing, and accept; `outcome` is changed."""
    rows = Population(*_arrays(situation, numbers, outcome)).progress(precision)[1]
    outcome[rows] = situation.is_right[rows] & (generator.random(len(rows)) >= situation.wrong)
    return accept(Population(*_arrays(situation, numbers, outcome)), precision, 0.95, version)


def _arrays(situation: Situation, numbers: Ints, outcome: Ints) -> tuple[Ints, Floats, Ints, Ints, Bools]:
    n_images = len(situation.is_right)
    return np.arange(n_images), situation.confidence, numbers, outcome, np.zeros(n_images, dtype=np.bool_)


def repeat(situation: Situation, precision: float, generator: np.random.Generator) -> tuple[float, bool, bool]:
    """Return the share that is accepted, and whether the promise is kept for all labels and for predictions."""
    n_images, version = len(situation.is_right), 1
    numbers, outcome = generator.permutation(n_images), np.where(situation.is_labeled, 1, -1)
    if situation.first is not None:
        half = len(situation.first.is_right)
        early = outcome[:half].copy()
        version = 1 if len(look(situation.first, numbers[:half], early, precision, 1, generator)) else 2
        checked = np.flatnonzero(early >= 0)
        outcome[checked] = situation.is_right[checked]  # the same answers, compared with the new predictions
    found = look(situation, numbers, outcome, precision, version, generator)
    if not len(found):
        return 0.0, True, True
    is_shown = situation.is_right.copy()
    is_shown[outcome == 0] = ~situation.is_right[outcome == 0]  # replaced by the answer, which may be wrong
    is_predicted = outcome[found.positions] < 0
    predictions = situation.is_right[found.positions][is_predicted]
    of_predictions = float(predictions.mean()) >= precision if len(predictions) else True
    return len(found) / n_images, float(is_shown[found.positions].mean()) >= precision, of_predictions


def plain_rules(situation: Situation, precision: float, repetitions: int) -> tuple[float, float]:
    """Return the largest share that is truly right enough, and the mean share that testing one half certifies."""
    right = situation.is_right[np.argsort(-situation.confidence, kind="stable")]
    enough = np.flatnonzero(np.cumsum(right) / np.arange(1, len(right) + 1) >= precision)
    n_checks, half = checks_of_stage(precision, 1), right[: len(right) // 2]
    generator = np.random.default_rng(0)
    wrong = [n_checks - int(generator.choice(half, n_checks, replace=False).sum()) for _ in range(repetitions)]
    passed = float(np.mean(binom.cdf(wrong, n_checks, 1 - precision) <= 0.05))
    return (enough[-1] + 1) / len(right) if len(enough) else 0.0, passed / 2


def main() -> int:
    """Print one row for each bed, situation and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--precisions", type=float, nargs="+", default=[0.9, 0.95])
    parser.add_argument("--only", default="", help="beds whose name begins like this")
    options = parser.parse_args()
    is_kept = True
    print(f"{'':24}{'':14}precision checks  right  accepted   kept  kept of predictions  ceiling   half")
    for bed in read_all(options.folder):
        if not bed.name.startswith(options.only):
            continue
        by_name: dict[str, list[Situation]] = {}
        for situation in situations(bed):
            by_name.setdefault(situation.name, []).append(situation)
        for precision in options.precisions:
            for name, same in by_name.items():
                generator = np.random.default_rng(0)
                each = max(1, options.repetitions // len(same))
                found = np.array([repeat(one, precision, generator) for one in same for _ in range(each)], dtype=float)
                share, kept, of_predictions = found.mean(axis=0)
                ceiling, half = plain_rules(same[0], precision, each)
                right = float(np.mean([one.is_right.mean() for one in same]))
                print(
                    f"{bed.name:24}{name:14}{precision:9.2f} {checks_of_stage(precision, 1):6} {100 * right:6.1f} "
                    f"{100 * share:9.1f} {100 * kept:6.1f} {100 * of_predictions:20.1f} {100 * ceiling:8.1f} "
                    f"{100 * half:6.1f}",
                    flush=True,
                )
                is_kept &= kept >= 0.95 or same[0].wrong > 0
    return int(not is_kept)


if __name__ == "__main__":
    sys.exit(main())
