"""Gaussian mixture anchored at class texts: rare and missing classes stay, labels and allowed classes are respected."""

from __future__ import annotations

import numpy as np
import pytest

from captune.core.arrays import Floats, Ints, unit_rows
from captune.core.errors import InputError
from captune.mixture import gaussian_mixture
from captune.mixture.gaussian_mixture import MixtureSettings, fit_gaussian_mixture

SCALE = 20.0


def scene(sizes: list[int], noise: float = 1.2, astray: float = 1.0, seed: int = 0) -> tuple[Floats, Floats, Ints]:
    """Return images around centers, texts that lie astray of the centers, and the truth."""
    generator = np.random.default_rng(seed)

    def directions(n: int) -> Floats:
        return unit_rows(generator.standard_normal((n, 32)).astype(np.float32))

    centers, gap = directions(len(sizes)), directions(1)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    images = unit_rows(centers[truth] + noise * directions(len(truth)))
    return images, unit_rows(centers + astray * directions(len(sizes)) + gap), truth


def accuracy(probabilities: Floats, truth: Ints) -> float:
    return float((probabilities.argmax(axis=1) == truth).mean())


def test_clustering_finds_more_than_the_texts() -> None:
    images, texts, truth = scene([60] * 6)
    before = accuracy(images @ texts.T, truth)
    assert accuracy(fit_gaussian_mixture(images, texts, SCALE).probabilities, truth) > before + 0.05


def test_a_long_tail_keeps_its_rare_classes() -> None:
    images, texts, truth = scene([200, 90, 40, 18, 8, 4])
    found = fit_gaussian_mixture(images, texts, SCALE).probabilities
    assert accuracy(found, truth) > accuracy(images @ texts.T, truth)
    rare = truth >= 4
    assert accuracy(found[rare], truth[rare]) >= accuracy(images[rare] @ texts.T, truth[rare])


def test_a_class_without_images_takes_nothing() -> None:
    images, texts, truth = scene([80, 80, 80, 0], astray=0.3)
    found = fit_gaussian_mixture(images, texts, SCALE)
    assert accuracy(found.probabilities, truth) > 0.95
    assert np.mean(found.probabilities.argmax(axis=1) == 3) < 0.02


def test_without_image_weight_it_is_zero_shot_with_shares() -> None:
    images, texts, _ = scene([60] * 6)
    found = fit_gaussian_mixture(images, texts, SCALE, MixtureSettings(image_weight=0.0, alpha=1e7, even_out=False))
    assert np.allclose(found.weights, 0.0, atol=1e-6)
    assert np.allclose(found.offsets, np.log(1 / 6), atol=1e-3)
    assert (found.probabilities.argmax(axis=1) == (images @ texts.T).argmax(axis=1)).all()


def test_sizes_that_hardly_differ_are_evened_out_and_clear_ones_stay() -> None:
    def variation(sizes: list[int], even_out: bool) -> float:
        images, texts, _ = scene(sizes, noise=2.0, astray=2.0)
        found = fit_gaussian_mixture(images, texts, SCALE, MixtureSettings(even_out=even_out)).probabilities
        counts = np.bincount(found.argmax(axis=1), minlength=len(sizes))
        return float(counts.std() / counts.mean())

    equal, tail = [40] * 6, [200, 90, 40, 18, 8, 4]
    assert variation(equal, even_out=True) < 0.8 * variation(equal, even_out=False)
    assert variation(tail, even_out=True) > 0.85 * variation(tail, even_out=False)


def test_few_images_a_class_are_heard_less() -> None:
    images, texts, _ = scene([50] * 6)
    few, many = fit_gaussian_mixture(images[::10], texts, SCALE), fit_gaussian_mixture(images, texts, SCALE)

    def spread(found: gaussian_mixture.MixtureFit) -> float:
        return float((images @ found.weights.T).std(axis=1).mean())

    assert spread(few) < 0.6 * spread(many)


def test_confidence_stays_near_that_of_zero_shot() -> None:
    images, texts, _ = scene([60] * 6)
    zero_shot = gaussian_mixture.softmax_rows(SCALE * images @ texts.T).max(axis=1).mean()
    found = fit_gaussian_mixture(images, texts, SCALE)
    raw = gaussian_mixture.softmax_rows(images @ (SCALE * texts + found.weights).T + found.offsets).max(axis=1).mean()
    assert abs(found.probabilities.max(axis=1).mean() - zero_shot) < 0.15 * abs(raw - zero_shot) + 1e-3


def test_labeled_images_move_their_class_however_few() -> None:
    images, texts, truth = scene([40, 40, 40, 40])
    texts[1] = scene([1, 1], seed=9)[1][0]  # a name that says nothing about its images
    few = np.flatnonzero(np.arange(160) % 40 < 2)
    rest = np.setdiff1d(np.arange(160), few)
    alone = fit_gaussian_mixture(images[rest], texts, SCALE).probabilities
    told = fit_gaussian_mixture(images[rest], texts, SCALE, labeled=images[few], labels=truth[few]).probabilities
    is_misnamed = truth[rest] == 1
    before, after = (accuracy(found[is_misnamed], truth[rest][is_misnamed]) for found in (alone, told))
    assert after > before + 0.3


def test_unlabeled_images_get_allowed_classes_only_but_all_classes_are_learned() -> None:
    images, texts, truth = scene([40] * 5)
    seen = truth < 3
    found = fit_gaussian_mixture(
        images[~seen], texts, SCALE, labeled=images[seen], labels=truth[seen], allowed=np.array([3, 4])
    )
    assert (found.probabilities[:, :3] == 0).all()
    assert accuracy(images @ (SCALE * texts + found.weights).T + found.offsets, truth) > 0.9


def test_the_order_of_images_does_not_matter() -> None:
    images, texts, _ = scene([50, 30, 10])
    order = np.random.default_rng(1).permutation(len(images))
    first, second = fit_gaussian_mixture(images, texts, SCALE), fit_gaussian_mixture(images[order], texts, SCALE)
    assert np.allclose(first.probabilities[order], second.probabilities, atol=1e-3)


def test_many_images_are_sampled_first_with_nearly_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts, _ = scene([400, 200, 100, 50])
    whole = fit_gaussian_mixture(images, texts, SCALE)
    monkeypatch.setattr(gaussian_mixture, "FEWEST_SAMPLED", 200)
    monkeypatch.setattr(gaussian_mixture, "SAMPLED_PER_CLASS", 10)
    sampled = fit_gaussian_mixture(images, texts, SCALE)
    assert sampled.probabilities.shape == whole.probabilities.shape
    assert np.mean(sampled.probabilities.argmax(axis=1) == whole.probabilities.argmax(axis=1)) > 0.97
    assert np.allclose(sampled.offsets, whole.offsets, atol=1.0)


@pytest.mark.parametrize("n_images", [0, 1, 2])
def test_hardly_any_image_is_enough(n_images: int) -> None:
    images, texts, _ = scene([2, 2, 2])
    found = fit_gaussian_mixture(images[:n_images], texts, SCALE)
    assert found.probabilities.shape == (n_images, 3)
    assert all(np.isfinite(array).all() for array in (found.weights, found.offsets, found.probabilities))


def test_the_same_image_many_times_gives_finite_numbers() -> None:
    images, texts, _ = scene([1, 1, 1])
    found = fit_gaussian_mixture(np.repeat(images[:1], 50, axis=0), texts, 100.0)
    assert np.isfinite(found.probabilities).all()
    assert np.isfinite(found.weights).all()


def test_three_hundred_classes() -> None:
    images, texts, truth = scene([3] * 300, noise=0.5, astray=0.5)
    assert accuracy(fit_gaussian_mixture(images, texts, SCALE).probabilities, truth) > 0.5


def test_wrong_shapes_and_labels_are_named() -> None:
    images, texts, _ = scene([5, 5])
    with pytest.raises(InputError, match=r"got \(10, 31\), \(2, 32\)"):
        fit_gaussian_mixture(images[:, 1:], texts, SCALE)
    with pytest.raises(InputError, match=r"ids in 0\.\.1, got 2\.\.2"):
        fit_gaussian_mixture(images, texts, SCALE, labeled=images[:1], labels=np.array([2]))


def test_labels_leave_fewer_rounds_to_drift_away_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_mixture, "TOLERANCE", -1.0)  # every round is made
    images, texts, truth = scene([30] * 8)
    rounds = []
    for n_labels in (0, 1, 8):
        some = np.linspace(0, len(images) - 1, n_labels).astype(int)
        found = fit_gaussian_mixture(images, texts, SCALE, labeled=images[some], labels=truth[some])
        rounds.append(found.rounds)
    assert rounds == [2 * 30, 2 * 10, 2 * gaussian_mixture.LABELED_ROUNDS]
    complete = fit_gaussian_mixture(images, texts, SCALE, labeled=images[:9], labels=truth[:9], allowed=range(1, 8))
    assert complete.rounds == 2 * 30  # no label of a class that the images may have


def test_labels_given_one_by_one_set_the_confidence() -> None:
    images, texts, truth = scene([60] * 4, astray=2.0)
    labeled, labels = images[::10], truth[::10]
    rest = np.setdiff1d(np.arange(len(images)), np.arange(0, len(images), 10))

    def fit(is_single: bool) -> tuple[Floats, float]:
        mask = np.full(len(labels), is_single)
        found = fit_gaussian_mixture(images[rest], texts, SCALE, labeled=labeled, labels=labels, is_single=mask)
        return found.probabilities, abs(
            found.probabilities.max(axis=1).mean() - accuracy(found.probabilities, truth[rest])
        )

    (single, error), (of_groups, error_without) = fit(True), fit(False)
    assert np.array_equal(single.argmax(axis=1), of_groups.argmax(axis=1))
    assert error < 0.5 * error_without
