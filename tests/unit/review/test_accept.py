"""Accepted labels: the promised precision is kept, looks are paid for, and checks are drawn where they count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import captune
from captune.core.arrays import Bools
from captune.core.errors import InputError
from captune.review.accept import Population, accept, checks_of_stage, precision_curve, share_of_look


def make_population(seed: int, n_images: int = 800, overconfident: bool = False) -> tuple[Population, Bools]:
    """Return predictions that are right about as often as their confidence says, or less often; none is checked."""
    generator = np.random.default_rng(seed)
    confidence = generator.beta(8, 1.0, n_images).astype(np.float32)
    is_right = generator.random(n_images) < confidence ** (3.0 if overconfident else 0.5)
    numbers = generator.permutation(n_images)
    nothing = np.zeros(n_images, dtype=np.bool_)
    return Population(np.arange(n_images), confidence, numbers, np.full(n_images, -1), nothing), is_right


def check(population: Population, is_right: Bools, precision: float) -> None:
    rows = population.progress(precision)[1]
    population.outcome[rows] = is_right[rows]


@pytest.mark.parametrize("overconfident", [False, True])
@pytest.mark.parametrize("precision", [0.8, 0.9])
def test_the_promise_is_kept(precision: float, overconfident: bool) -> None:
    kept, shares = [], []
    for seed in range(300):
        population, is_right = make_population(seed, overconfident=overconfident)
        for _ in range(2):  # somebody who looks at every stage and takes the first result
            check(population, is_right, precision)
            found = accept(population, precision, 0.95, 1)
            if len(found):
                break
        is_shown = is_right.copy()
        is_shown[population.outcome == 0] = True  # wrong labels that were found are corrected
        kept.append(not len(found) or float(is_shown[found.positions].mean()) >= precision)
        shares.append(len(found) / found.n_images)
    assert np.mean(kept) >= 0.95
    assert overconfident or np.mean(shares) > 0.3


def test_without_all_checks_nothing_is_computed() -> None:
    population, is_right = make_population(0)
    found = accept(population, 0.9, 0.95, 1)
    assert (len(found), found.n_missing) == (0, 60)
    assert "60 more images" in found.sentence
    check(population, is_right, 0.9)
    population.outcome[population.progress(0.9)[1][:10]] = 1  # a part of the next stage changes nothing
    some = accept(population, 0.9, 0.95, 1)
    assert (some.n_checks, some.n_more) == (60, 50)


def test_checks_are_a_random_sample_of_the_zone_whatever_was_checked_before() -> None:
    population, _ = make_population(1)
    zone, is_checked = population.planned(0.9, 1)
    assert is_checked.sum() == 60
    assert population.numbers[zone[is_checked]].max() < population.numbers[zone[~is_checked]].min()
    before = set(population.progress(0.9)[1].tolist())
    population.outcome[np.argsort(population.numbers)[:30]] = 1  # checks that were drawn among all images
    assert set(population.progress(0.9)[1].tolist()) < before


def test_the_shares_of_all_looks_sum_to_one() -> None:
    total = sum(share_of_look(stage, version) for stage in range(1, 60) for version in range(1, 60))
    assert total == pytest.approx(1.0)
    assert [checks_of_stage(0.95, stage) for stage in (1, 2, 3)] == [120, 240, 480]


def test_the_curve_holds_the_true_precision() -> None:
    inside = []
    for seed in range(40):
        population, is_right = make_population(seed)
        assert [(point["low"], point["high"]) for point in precision_curve(population)] == [(0.0, 1.0)] * 20
        check(population, is_right, 0.9)
        order = np.lexsort((population.numbers, -population.confidence))
        for point in precision_curve(population):
            zone = order[: round(point["coverage"] * len(order))]
            inside.append(point["low"] <= is_right[zone].mean() <= point["high"])
            assert point["expected"] == pytest.approx(population.confidence[zone].mean())
        assert (point["coverage"], len(zone)) == (1.0, 800)
    assert np.mean(inside) >= 0.95


@pytest.mark.parametrize(("precision", "certainty"), [(1.0, 0.95), (0.2, 0.95), (0.9, 1.0)])
def test_impossible_promises_are_refused(precision: float, certainty: float) -> None:
    with pytest.raises(InputError, match="precision"):
        accept(make_population(0)[0], precision, certainty, 1)


def test_from_a_session_to_accepted_labels(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    centers = np.linalg.qr(generator.normal(size=(16, 16)))[0][:4]
    labels, names = np.arange(400) % 4, ("cat", "dog", "fox", "owl")
    images = captune.Embeddings(centers[labels] + 0.12 * generator.normal(size=(400, 16)))
    texts = captune.ClassTexts(names, centers + 0.1 * generator.normal(size=(4, 16)), 20.0)
    captune.open_session(images, texts, person="anna").save(tmp_path / "run")
    session = captune.open_session(tmp_path / "run", images=images, person="anna")
    checks = session.suggest_checks(0.9)
    before = session.engine.probabilities.copy()
    assert session.accept(0.9).n_missing == len(checks) == 60
    session.label({s.position: names[labels[s.position]] for s in checks[:-2]}, suggestion="precision")
    session.skip(checks[-2].position, suggestion="precision")  # cannot be named: counts as wrong, is not accepted
    session.label(checks[-1].position, captune.NONE, suggestion="precision")
    np.testing.assert_array_equal(session.engine.probabilities, before)
    found = session.accept(0.9)
    assert found.n_wrong >= 2
    assert len(found) > 200
    assert not {checks[-1].position, checks[-2].position} & set(found.positions.tolist())
    assert session.engine.review["looks"]["0.9"]["failures"] == 0
    again = captune.open_session(tmp_path / "run", images=images, person="ben")
    assert again.accept(0.9).positions.tolist() == found.positions.tolist()


def test_tries_that_accept_nothing_are_paid_for(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images = captune.Embeddings(generator.normal(size=(200, 8)))
    texts = captune.ClassTexts(("cat", "dog", "fox"), generator.normal(size=(3, 8)), 20.0)
    captune.open_session(images, texts, person="anna").save(tmp_path / "run")
    session = captune.open_session(tmp_path / "run", images=images, person="anna")
    places = []
    for _ in range(3):
        session.label(session.suggest(1, checks=0.0)[0].position, "cat")  # another classifier
        session.label({s.position: captune.NONE for s in session.suggest_checks(0.8)}, suggestion="precision")
        assert len(session.accept(0.8)) == 0
        session.accept(0.8)  # the same look again is free
        places.append(captune.open_session(tmp_path / "run", images=images).engine.review["looks"]["0.8"]["failures"])
    assert places == [1, 2, 3]
