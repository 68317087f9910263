"""Accepting labels: the largest set of predictions of which at least a given share is right, with certainty.

Zones are the most confident predictions: a twentieth of the planned zone, two twentieths, and so on. The planned zone
follows from confidences alone, and checks in it are drawn by random numbers, so wrong checks of each zone have a
hypergeometric distribution. Zones are tested from a first one that confidences choose to larger ones until a test
fails: a wrong claim requires that the first zone that is not good enough passes its test (fixed-sequence testing).
Repeated looks are paid for: see `share_of_look`. docs/accept.md has the argument in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from captune.core.arrays import Bools, Floats, Ints
from captune.core.errors import InputError
from captune.review.corrections import CHECK, PRECISION
from captune.review.engine import applied
from captune.review.estimate import exact_interval

if TYPE_CHECKING:
    from captune.review.session import Session

N_ZONES = 20
CHECKS_OF_FIRST_STAGE = 6.0
"""Checks of the first look times (1 - precision): 60 for 90 %, 120 for 95 %; each stage doubles them."""
FIRST_SHARE = 0.85
"""Share of the allowed error that the first look at the first classifier may use."""
MOST_WRONG = 200


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Labels that are accepted, or what is missing.

    Attributes:
        positions: The accepted images, the most confident first; empty if none are certain.
        n_images: Number of images that could be accepted.
        n_wrong: Wrong predictions among the checks; they are accepted with the label of the person.
        n_missing: Number of checks that are to be answered before anything is computed; 0 if all are.
        n_more: Number of further checks of the next look.
        zones: Numbers of images, checks and wrong checks of each zone, the most confident predictions.
    """

    precision: float
    certainty: float
    positions: Ints
    n_images: int
    confidence: float = 1.0
    n_checks: int = 0
    n_wrong: int = 0
    n_missing: int = 0
    n_more: int = 0
    zones: tuple[tuple[int, int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def sentence(self) -> str:
        """Return the result in words."""
        share, seen = f"{self.precision:.0%}", f"{self.n_checks} checked images, {self.n_wrong} of them wrong"
        if self.n_missing:
            return f"{self.n_missing} more images must be checked before labels can be accepted at {share}."
        told = (
            f"{len(self)} of {self.n_images} predictions are accepted: at least {share} are right, with "
            f"{self.certainty:.0%} certainty ({seen})."
        )
        if not len(self):
            zone = self.zones[-1][0] if self.zones else 0
            told = (
                f"No labels are certain to be {share} right: among the {zone} most confident predictions there are "
                f"{seen}. Answer suggestions first to improve the labels, or ask for less."
            )
        return f"{told} {f'{self.n_more} more checks may certify more.' if self.n_more else 'All of them are checked.'}"

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the positions as JSON values."""
        kept = {name: value for name, value in asdict(self).items() if name != "positions"}
        return {**kept, "n_accepted": len(self), "sentence": self.sentence}


@dataclass(frozen=True, eq=False)
class Population:
    """The images whose labels may be accepted, by position in the session; all arrays are `(images,)`.

    `outcome` is 1 where the label is right, 0 where it is wrong and -1 where nobody checked. `is_nameless` images,
    which a person could not name or which fit no class, are not accepted.
    """

    positions: Ints
    confidence: Floats
    numbers: Ints
    outcome: Ints
    is_nameless: Bools

    @cached_property
    def by_confidence(self) -> tuple[Ints, NDArray[np.float64]]:
        """Return the order of the images, most confident first, and the mean confidence up to each of them."""
        order = np.lexsort((self.numbers, -self.confidence))
        return order, np.cumsum(self.confidence[order], dtype=np.float64) / np.arange(1, len(order) + 1)

    def planned(self, precision: float, stage: int) -> tuple[Ints, Bools]:
        """Return the planned zone, most confident first, and which of it is checked at a stage; both `(zone,)`."""
        n_checks, (order, mean) = checks_of_stage(precision, stage), self.by_confidence
        zone = order[: max(int(np.count_nonzero(mean >= precision)), n_checks)]
        n = min(n_checks, len(zone))
        last = np.partition(self.numbers[zone], n - 1)[n - 1] if n else 0
        return zone, self.numbers[zone] <= last

    def progress(self, precision: float) -> tuple[int, Ints]:
        """Return the last stage whose checks are all answered (0: none), and the images to check for the next one."""
        for stage in count():
            zone, is_checked = self.planned(precision, stage + 1)
            rows = zone[is_checked & (self.outcome[zone] < 0)]
            if len(rows):
                return stage, self.positions[rows[np.argsort(self.numbers[rows])]]
            if is_checked.all():
                break
        return stage + 1, rows


def checks_of_stage(precision: float, stage: int) -> int:
    """Return the number of checks at a look; they are fixed, so nobody can stop when it suits."""
    return round(CHECKS_OF_FIRST_STAGE / (1.0 - precision)) * 2 ** (stage - 1)


def share_of_look(stage: int, version: int) -> float:
    """Return the share of the allowed error for a look at a stage, at the n-th classifier since labels were accepted.

    The shares of all stages and versions sum to one: s pairs have stage + version - 1 = s, and each gets an s-th of
    what is left for them, which is halved from s to s.
    """
    place = stage + version - 1
    return FIRST_SHARE if place == 1 else (1.0 - FIRST_SHARE) * 0.5 ** (place - 1) / place


def accept(population: Population, precision: float, certainty: float, version: int) -> Acceptance:
    """Return the largest set of labels whose precision is certain; `version` counts tries since the last success."""
    if not 0.5 <= precision < 1.0 or not 0.5 <= certainty < 1.0:
        raise InputError(f"Expected precision and certainty from 0.5 to below 1, got {precision} and {certainty}.")
    stage, missing = population.progress(precision)
    n_images = len(population.positions)
    if not stage or not n_images:
        return Acceptance(precision, certainty, missing[:0], n_images, n_missing=len(missing))
    zone, is_checked = population.planned(precision, stage)
    is_wrong, allowed = is_checked & (population.outcome[zone] == 0), (1.0 - certainty) * share_of_look(stage, version)
    sizes = np.unique(np.linspace(0, len(zone), N_ZONES + 1).round().astype(np.int64)[1:])
    n_checks, n_wrong = (np.cumsum(one, dtype=np.int64)[sizes - 1] for one in (is_checked, is_wrong))
    tests = zip(sizes.tolist(), n_checks.tolist(), strict=True)
    most_wrong = np.array([_most_wrong(size, n, precision, allowed) for size, n in tests])
    start = _first_zone(population.confidence[zone], sizes, n_checks, most_wrong)
    n_passed = int(np.argmin([*(n_wrong <= most_wrong)[start:], False]))  # until the first test fails
    accepted = zone[: int(sizes[start + n_passed - 1]) if n_passed else 0]
    return Acceptance(
        precision,
        certainty,
        population.positions[accepted[~population.is_nameless[accepted]]],
        n_images,
        float(population.confidence[accepted].min(initial=1.0)),
        int(is_checked.sum()),
        int(is_wrong.sum()),
        n_more=len(missing),
        zones=tuple(zip(sizes.tolist(), n_checks.tolist(), n_wrong.tolist(), strict=True)),
    )


@lru_cache(maxsize=4096)
def _most_wrong(n_images: int, n_checks: int, precision: float, allowed: float) -> int:
    """Return the largest number of wrong checks with which the precision of a zone is certain, or -1.

    A zone that is not good enough has at least one wrong label more than the allowed ones. The probability to find so
    few of them is at most the tail of the hypergeometric distribution. That wrong labels are corrected when they are
    found is not counted: the argument for a sequence of zones needs a hypothesis that does not depend on the checks.
    """
    from scipy.stats import hypergeom

    too_many = int((1.0 - precision) * n_images + 1e-9) + 1
    tail = hypergeom.cdf(np.arange(min(n_checks, MOST_WRONG) + 1), n_images, too_many, n_checks)
    return int(np.argmin([*(tail <= allowed), False])) - 1


def _first_zone(confidence: Floats, sizes: Ints, n_checks: Ints, most_wrong: Ints) -> int:
    """Return the zone whose test is most likely to pass if confidences are right, which no answer influences."""
    from scipy.stats import binom

    wrong = 1.0 - np.cumsum(confidence, dtype=np.float64)[sizes - 1] / sizes
    power = np.where(most_wrong >= 0, binom.cdf(most_wrong, n_checks, np.clip(wrong, 0.0, 1.0)), 0.0)
    return int(np.flatnonzero(power >= power.max())[-1])


def population_of(session: Session) -> Population:
    """Return the predictions of a session that may be accepted, with what is known about them.

    Images that a person labeled on purpose are not among them, and neither are those that nobody can name or that fit
    no class, unless they were drawn as checks: then the prediction counts as wrong.
    """
    predictions, n_images, names = session.predictions_without_checks(), len(session.images), session.names
    outcome, is_in, is_nameless = np.full(n_images, -1), ~predictions.is_rejected, np.zeros(n_images, dtype=np.bool_)
    for row, suggestion in session.skipped.items():
        outcome[row], is_nameless[row] = 0, True
        is_in[row] &= suggestion in (CHECK, PRECISION)
    for row, answer in session.labels.items():
        if not answer.is_group:
            is_nameless[row] = answer.label not in names
            outcome[row] = not is_nameless[row] and names.index(answer.label) == predictions.labels[row]
            is_in[row] &= answer.is_check
    rows, numbers = np.flatnonzero(is_in), session.random_numbers
    return Population(rows, predictions.confidence[rows], numbers[rows], outcome[rows], is_nameless[rows])


def precision_curve(population: Population) -> list[dict[str, float]]:
    """Return, for the most confident predictions by `coverage`, what they are worth.

    `expected` is their mean confidence, `n_checks` and `n_wrong` count a random sample of them, and `low` to `high` is
    the 95 % interval of their precision, 0 to 1 without checks.
    """
    (order, mean), points = population.by_confidence, []
    for size in sorted({round(len(order) * part / N_ZONES) for part in range(1, N_ZONES + 1)} - {0}):
        numbers, outcome = population.numbers[order[:size]], population.outcome[order[:size]]
        # Those with the smallest numbers are a random sample, up to the first that nobody answered.
        is_checked = numbers < numbers[outcome < 0].min(initial=np.iinfo(numbers.dtype).max)
        n_checks, n_wrong = int(is_checked.sum()), int((is_checked & (outcome == 0)).sum())
        low, high = exact_interval(1.0 - n_wrong / n_checks, n_checks) if n_checks else (0.0, 1.0)
        facts = {"coverage": size / len(order), "expected": float(mean[size - 1]), "n_checks": n_checks}
        points.append({**facts, "n_wrong": n_wrong, "low": low, "high": high})
    return points


def accept_labels(session: Session, precision: float, certainty: float) -> Acceptance:
    """Accept labels of a session, and remember the look in its run.

    A look at another classifier after one that accepted nothing is another try, and has a smaller share of the allowed
    error. The same classifier keeps its place, however often it is asked for.
    """
    population, engine = population_of(session), session.engine
    looks = dict(engine.review.get("looks", {}))
    seen = looks.get(f"{precision:g}", {"failures": 0, "places": {}})
    version = f"{applied(session.answers)} {len(session.images)} {engine.plan.settings.method}"
    place = seen["places"].get(version, seen["failures"] + 1)
    found = accept(population, precision, certainty, place)
    if not found.n_missing:
        places = {**seen["places"], version: place}
        looks[f"{precision:g}"] = {"failures": 0 if len(found) else max(place, seen["failures"]), "places": places}
        engine.remember(looks=looks, accepted=found.as_dict())
    return found


def accepted_rows(session: Session, found: Acceptance) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, label, confidence and source of each accepted prediction, and of each image that a person labeled."""
    labels, confidence = session.predictions.labels, session.predictions.confidence
    known = {row for row, answer in session.labels.items() if not answer.is_group and answer.label in session.names}
    accepted = found.positions.tolist()
    for row in (*accepted, *sorted(known - set(accepted))):
        source = "person" if row in known else "prediction"
        yield session.images.name(row), session.names[labels[row]], f"{confidence[row]:.6f}", source
