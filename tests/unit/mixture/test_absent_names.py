"""Names that no image shows are found, and names that images show are kept."""

from __future__ import annotations

import numpy as np
import pytest

from captune.core.arrays import Floats, Ints, softmax_rows, unit_rows
from captune.mixture.gaussian_mixture import MixtureSettings, fit_gaussian_mixture
from captune.mixture.open_world import even_share, expected_images, find_absent

NO_LABELS = np.empty(0, dtype=np.int64)


def make(n_present: int, n_names: int = 40, per_class: int = 12, seed: int = 0) -> tuple[Floats, Floats, Ints]:
    """Return images around the texts of the first names, with which the others are confused at times."""
    generator = np.random.default_rng(seed)
    texts = unit_rows(generator.normal(size=(n_names, 32)).astype(np.float32))
    labels = np.repeat(np.arange(n_present), per_class)
    noise = generator.normal(size=(len(labels), 32)).astype(np.float32)
    return unit_rows(texts[labels] + 0.28 * noise), texts, labels


def zero_shot(images: Floats, texts: Floats, scale: float = 12.0) -> Floats:
    return softmax_rows(np.float32(scale) * (images @ texts.T))


def test_a_few_of_many_names_are_found_and_accuracy_rises() -> None:
    images, texts, labels = make(n_present=5)
    absent = find_absent(zero_shot(images, texts), NO_LABELS)
    assert not absent[:5].any()
    assert absent[5:].mean() > 0.9
    found = fit_gaussian_mixture(images, texts, 12.0)
    everything = fit_gaussian_mixture(images, texts, 12.0, MixtureSettings(absent_names=False))
    accuracy = [np.mean(fit.probabilities.argmax(axis=1) == labels) for fit in (found, everything)]
    assert accuracy[0] > accuracy[1]
    assert found.is_absent.tolist() == absent.tolist()


def test_names_that_are_all_shown_are_kept_with_one_image_each_or_many() -> None:
    for per_class in (1, 12):
        images, texts, _ = make(n_present=40, per_class=per_class)
        assert not find_absent(zero_shot(images, texts), NO_LABELS).any()


def test_a_name_with_a_label_is_never_absent() -> None:
    images, texts, _ = make(n_present=5)
    assert not find_absent(zero_shot(images, texts), np.array([30]))[30]


def test_one_name_may_remain_and_names_that_no_image_may_have_are_not_absent() -> None:
    images, texts, _ = make(n_present=1, per_class=60)
    probabilities = zero_shot(images, texts)
    assert np.flatnonzero(~find_absent(probabilities, NO_LABELS)).tolist() == [0]
    assert (fit_gaussian_mixture(images, texts, 12.0).probabilities.argmax(axis=1) == 0).all()
    probabilities[:, 7] = 0.0
    assert not find_absent(probabilities, NO_LABELS)[7]
    assert not find_absent(probabilities[:0], NO_LABELS).any()


def test_expected_images_are_those_of_slow_expectation_maximization() -> None:
    probabilities = np.random.default_rng(0).dirichlet(np.ones(4), size=30).astype(np.float32)
    shares = [0.25] * 4
    for _ in range(200):
        totals = [0.0] * 4
        for row in probabilities.astype(float).tolist():
            weighted = [share * p for share, p in zip(shares, row, strict=True)]
            totals = [total + w / sum(weighted) for total, w in zip(totals, weighted, strict=True)]
        powers = [total**0.7 for total in totals]
        shares = [power / sum(powers) for power in powers]
    assert expected_images(probabilities, 0.3) == pytest.approx([30 * share for share in shares], rel=1e-3)
    assert expected_images(probabilities, 1.0) == pytest.approx([7.5] * 4)


def test_even_sizes_are_explained_by_chance_and_uneven_ones_are_not() -> None:
    assert even_share(zero_shot(*make(n_present=40)[:2])) == 1.0
    assert even_share(zero_shot(*make(n_present=4)[:2])) < 0.01


def test_the_rule_gives_an_absent_name_to_a_new_image_that_clearly_shows_it() -> None:
    images, texts, _ = make(n_present=5)
    found = fit_gaussian_mixture(images, texts, 12.0)
    rule, missing = np.float32(12.0) * texts + found.weights, int(np.flatnonzero(found.is_absent)[0])
    scores = images @ rule.T + found.offsets
    assert np.array_equal(scores.argmax(axis=1), found.probabilities.argmax(axis=1))
    assert softmax_rows(scores / np.float32(found.temperature))[:, found.is_absent].max() <= 0.0011
    assert (10 * texts[missing] @ rule.T + found.offsets).argmax() == missing
