"""Accepted labels on real predictions: is the promised precision kept, and for how many images?

    python benchmarks/accept.py BEDS --repetitions 1000

BEDS has beds as .npz files (see benchmarks/beds.py). Predictions are those of `transductive`. A repetition draws other
random numbers, a person answers the checks of the first look, and labels are accepted. Four situations: without
answers; after images were added (labels of a random half were asked for first, and its checks are used again; the look
pays if nothing was accepted there); with 5 % wrong answers; and sessions in which a person answers the checks, then 42
suggestions, and the checks that are missing then. For each of them: share of the images that is accepted, share of the
repetitions in which the promise is kept (of all accepted labels, and of those that nobody checked), and what plain
rules give: `ceiling` knows all labels, `half` tests the more confident half with a binomial tail. The exit code says
whether the promise is kept in 95 %, if all answers are right.
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
from captune.review.session import Session
from labels import answer, open_bed, read_all

N_ANSWERS = 42


@dataclass(frozen=True, eq=False)
class Situation:
    """Predictions whose labels are to be accepted: all arrays `(images,)`."""

    name: str
    confidence: Floats
    is_right: Bools
    first: Situation | None = None
    """The half that was looked at before; its images are the first ones."""
    wrong: float = 0.0


def situations(bed: Bed) -> Iterator[Situation]:
    """Yield the situations in which predictions are given."""
    probabilities = fit_gaussian_mixture(bed.images, bed.texts, bed.logit_scale).probabilities
    plain = Situation("no answers", probabilities.max(axis=1), probabilities.argmax(axis=1) == bed.labels)
    yield plain
    yield replace(_shuffled(plain, bed), name="images added")
    yield replace(plain, name="5 % wrong", wrong=0.05)


def answered(bed: Bed, precision: float, seed: int) -> tuple[float, bool, bool]:
    """Return what `repeat` returns, for a person who checks, answers suggestions and checks what is missing then."""
    session, generator = open_bed(bed, seed), np.random.default_rng(seed)
    check(session, bed, precision)
    chosen = np.array([suggestion.position for suggestion in session.suggest(N_ANSWERS, checks=0.0)])
    session.label(answer(bed, chosen, 0.0, generator))
    check(session, bed, precision)
    found = session.accept(precision)
    is_right = session.predictions_without_checks().labels == bed.labels
    is_shown = session.predictions.labels == bed.labels
    unchecked = [row for row in found.positions.tolist() if row not in session.labels]
    kept = not len(found) or float(is_shown[found.positions].mean()) >= precision
    return len(found) / len(bed.labels), kept, not unchecked or float(is_right[unchecked].mean()) >= precision


def check(session: Session, bed: Bed, precision: float) -> None:
    """Answer the checks that are missing."""
    rows = [suggestion.position for suggestion in session.suggest_checks(precision)]
    session.label({row: str(bed.labels[row]) for row in rows}, suggestion="precision")


def _shuffled(plain: Situation, bed: Bed) -> Situation:
    """Return the images in random order, and what the mixture finds for the first half alone."""
    order = np.random.default_rng(0).permutation(len(bed.labels))
    half = order[: len(order) // 2]
    probabilities = fit_gaussian_mixture(bed.images[half], bed.texts, bed.logit_scale).probabilities
    is_right = probabilities.argmax(axis=1) == bed.labels[half]
    first = Situation("half", probabilities.max(axis=1), is_right)
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
    numbers, outcome = generator.permutation(n_images), np.full(n_images, -1)
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


def show(bed: Bed, name: str, precision: float, found: list[tuple[float, bool, bool]], plain: str = "") -> None:
    """Print a row of the table."""
    share, kept, of_predictions = 100 * np.mean(np.asarray(found, dtype=float), axis=0)
    print(
        f"{bed.name:24}{name:14}{precision:9.2f} {checks_of_stage(precision, 1):6} {share:9.1f} {kept:6.1f} "
        f"{of_predictions:20.1f} {plain}",
        flush=True,
    )


def main() -> int:
    """Print one row for each bed, situation and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--precisions", type=float, nargs="+", default=[0.9, 0.95])
    parser.add_argument("--only", default="", help="beds whose name begins like this")
    options = parser.parse_args()
    is_kept = True
    print(f"{'':24}{'':14}precision checks  accepted   kept  kept of predictions  ceiling   half")
    for bed in read_all(options.folder):
        if not bed.name.startswith(options.only):
            continue
        for precision in options.precisions:
            for situation in situations(bed):
                generator = np.random.default_rng(0)
                found = [repeat(situation, precision, generator) for _ in range(options.repetitions)]
                ceiling, half = plain_rules(situation, precision, options.repetitions)
                show(bed, situation.name, precision, found, f"{100 * ceiling:8.1f} {100 * half:6.1f}")
                is_kept &= situation.wrong > 0 or float(np.mean([kept for _, kept, _ in found])) >= 0.95
            show(bed, "42 answers", precision, [answered(bed, precision, seed) for seed in range(options.sessions)])
    return int(not is_kept)


if __name__ == "__main__":
    sys.exit(main())
