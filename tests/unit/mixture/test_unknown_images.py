"""Images that fit no name have the lowest ranks, whatever their order; answers correct the ranks around them."""

from __future__ import annotations

import numpy as np
import pytest

from captune.core.arrays import Bools, Floats, unit_rows
from captune.core.errors import InputError
from captune.mixture.open_world import fit_of_new_images, fit_to_names


def make(seed: int = 0) -> tuple[Floats, Floats, Bools]:
    """Return images of six classes, texts of four of them, and which images have a text."""
    generator = np.random.default_rng(seed)
    centers = unit_rows(generator.normal(size=(6, 24)).astype(np.float32))
    labels = np.repeat(np.arange(6), 20)
    images = unit_rows(centers[labels] + 0.2 * generator.normal(size=(120, 24)).astype(np.float32))
    return images, unit_rows(centers[:4] + 0.4 * generator.normal(size=(4, 24)).astype(np.float32)), labels < 4


def test_unknown_images_rank_below_known_ones_in_any_order() -> None:
    images, texts, is_known = make(1)
    fits = fit_to_names(images, texts)
    assert np.median(fits[is_known]) > np.median(fits[~is_known]) + 0.3
    assert 0 < fits.min() < fits.max() < 1
    order = np.random.default_rng(1).permutation(len(images))
    assert fit_to_names(images[order], texts).tobytes() == fits[order].tobytes()


def test_answers_correct_the_ranks_around_them() -> None:
    images, texts, is_known = make(3)
    misleading = np.roll(texts, 1, axis=1)
    before = fit_to_names(images, misleading)
    after = fit_to_names(images, misleading, known=images[:80:20], unknown=images[[80, 100]])
    rest = np.setdiff1d(np.arange(120), [0, 20, 40, 60, 80, 100])
    gap = [np.mean(fits[rest][is_known[rest]]) - np.mean(fits[rest][~is_known[rest]]) for fits in (before, after)]
    assert gap[1] > gap[0] + 0.2
    assert gap[1] > 0.1


def test_a_share_of_the_images_is_below_that_rank() -> None:
    images, texts, _ = make()
    assert np.count_nonzero(fit_to_names(images, texts) < 0.1) == 12
    assert fit_to_names(images[:0], texts).shape == (0,)
    with pytest.raises(InputError, match="one width"):
        fit_to_names(images, texts[:, 1:])


def test_new_images_have_the_rank_that_they_would_have_among_the_others() -> None:
    rng = np.random.default_rng(0)
    images = unit_rows(3 * np.eye(6, 32)[rng.integers(0, 6, 600)] + rng.normal(size=(600, 32)))
    texts = unit_rows(np.eye(5, 32) + 0.05)  # of the first five; no name describes the last
    together = fit_to_names(images, texts)
    known, new = images[:300], images[300:]
    again = fit_of_new_images(known, texts, known.astype(np.float16))  # some images change their best name
    assert np.quantile(np.abs(again - fit_to_names(known, texts)), 0.9) < 0.01
    alone = fit_of_new_images(new, texts, known)
    assert np.corrcoef(alone, together[300:])[0, 1] > 0.9
    # The others do not count, not even if no name fits any of them.
    worst = new[together[300:] < 0.1]
    assert np.allclose(fit_of_new_images(worst, texts, known), alone[together[300:] < 0.1], atol=1e-6)
