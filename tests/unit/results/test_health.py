"""The health check sees collapse, random relabeling and real improvement without labels."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from captune.core.arrays import Floats, Ints, softmax_rows, unit_rows
from captune.core.errors import InputError
from captune.embeddings import similarity as search
from captune.mixture.gaussian_mixture import fit_gaussian_mixture
from captune.results import health


def blobs(n_classes: int = 6, per_class: int = 40, seed: int = 0) -> tuple[Floats, Ints]:
    generator = np.random.default_rng(seed)
    centers = generator.standard_normal((n_classes, 32))
    labels = np.repeat(np.arange(n_classes), per_class)
    points = centers[labels] + 0.5 * generator.standard_normal((len(labels), 32))
    return unit_rows(points.astype(np.float32)), labels


def probabilities(labels: Ints, wrong: float, seed: int = 0, n_classes: int = 6) -> Floats:
    """Sure predictions of which a share is replaced by random classes."""
    generator = np.random.default_rng(seed)
    replaced = generator.random(len(labels)) < wrong
    predicted = np.where(replaced, generator.integers(0, n_classes, len(labels)), labels)
    return softmax_rows((5 * np.eye(n_classes)[predicted]).astype(np.float32))


def slow_agreement(embeddings: Floats, predicted: Ints, k: int) -> float:
    same, pairs = 0, 0
    for i, row in enumerate(embeddings):
        others = sorted((j for j in range(len(embeddings)) if j != i), key=lambda j: -float(row @ embeddings[j]))
        same += sum(int(predicted[j] == predicted[i]) for j in others[:k])
        pairs += k
    chance = sum((list(predicted).count(c) / len(predicted)) ** 2 for c in set(predicted.tolist()))
    return (same / pairs - chance) / (1 - chance)


def test_agreement_equals_a_slow_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = blobs(4, 12)
    predicted = probabilities(labels, 0.4, n_classes=4).argmax(axis=1)
    everyone = np.arange(len(images))
    whole = search.nearest_neighbors(images, everyone, 5)
    monkeypatch.setattr(search, "BYTES_AT_ONCE", 4 * len(images) * 7)  # seven queries at a time
    parts = search.nearest_neighbors(images, everyone, 5)
    assert [set(row) for row in whole.tolist()] == [set(row) for row in parts.tolist()]
    fast = health.neighbor_agreement(predicted, everyone, whole)
    assert fast == pytest.approx(slow_agreement(images, predicted, 5))


def test_one_class_for_all_agrees_no_more_than_chance() -> None:
    images, labels = blobs()
    everyone = np.arange(len(images))
    neighbors = search.nearest_neighbors(images, everyone, health.N_NEIGHBORS)
    assert health.neighbor_agreement(np.zeros_like(labels), everyone, neighbors) == 0.0
    assert health.neighbor_agreement(labels, everyone, neighbors) > 0.9
    shuffled = np.random.default_rng(0).permutation(labels)
    assert abs(health.neighbor_agreement(shuffled, everyone, neighbors)) < 0.05


def test_effective_classes_by_hand() -> None:
    old, new = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 2])
    assert health.effective_classes(old) == pytest.approx(2.0)
    assert health.effective_classes(np.array([1, 1])) == pytest.approx(1.0)
    assert health.effective_classes(new) == pytest.approx(math.exp(0.75 * math.log(4 / 3) + 0.25 * math.log(4)))


def check(images: Floats, before: Floats, after: Floats) -> health.HealthCheck:
    """Check with class texts that lie where the images of the classes do."""
    centers = blobs(before.shape[1], 40)[0].reshape(before.shape[1], 40, -1).mean(axis=1)
    return health.check_health(images, before, after, unit_rows(centers), 20.0)


def test_clusters_that_get_names_of_their_own_look_helpful_though_neighbors_agreed_before() -> None:
    images, labels = blobs(8, 40)
    misnamed = np.where(labels < 4, labels, labels - 4)  # the images of four classes go by the names of four others
    found = check(images, probabilities(misnamed, 0.0, n_classes=8), probabilities(labels, 0.0, n_classes=8))
    assert found.changed == 0.5
    assert abs(found.agreement_after - found.agreement_before) < 0.05
    assert found.verdict == "helpful"


def test_fewer_mistakes_look_helpful() -> None:
    images, labels = blobs()
    found = check(images, probabilities(labels, 0.5), probabilities(labels, 0.1, seed=1))
    assert found.verdict == "helpful"
    assert found.agreement_after > found.agreement_before
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["verdict"] == "helpful"


def test_an_adaptation_that_overturns_more_than_zero_shot_was_confident_of_is_not_called_helpful() -> None:
    images, labels = blobs()
    sure = probabilities(labels, 0.6)
    unsure = softmax_rows(np.log(sure) * np.float32(0.2))
    after = probabilities(labels, 0.0)
    assert check(images, sure, after).verdict == "helpful"
    found = check(images, unsure, after)
    assert found.expected_change > 0.2
    assert found.changed > found.confidence_before
    assert found.verdict == "unclear"
    assert "more than zero-shot was confident of" in found.sentence


def test_more_mistakes_look_harmful() -> None:
    images, labels = blobs()
    found = check(images, probabilities(labels, 0.2), probabilities(labels, 0.8, seed=1))
    assert found.verdict == "harmful"
    assert "harmful" in found.sentence


def test_collapse_looks_harmful_though_it_is_confident() -> None:
    images, labels = blobs()
    collapsed = probabilities(np.zeros_like(labels), 0.0)
    found = check(images, probabilities(labels, 0.5), collapsed)
    assert found.verdict == "harmful"
    assert "6 classes to 1" in found.sentence


def test_names_swapped_for_most_images_win_no_agreement_and_look_harmful() -> None:
    images, labels = blobs()
    before = probabilities(labels, 0.3)
    found = check(images, before, np.roll(before, 1, axis=1))
    assert found.agreement_after == pytest.approx(found.agreement_before)
    assert found.verdict == "harmful"


def test_the_same_predictions_made_surer_are_neither() -> None:
    images, labels = blobs()
    surer = probabilities(labels, 0.3)
    found = check(images, softmax_rows(np.log(surer) * np.float32(0.5)), surer)
    assert (found.verdict, found.changed) == ("unclear", 0.0)
    assert found.expected_change == 0.0


def test_a_long_tail_found_again_is_not_called_harmful() -> None:
    images, labels = blobs(6, 80)
    rare = np.concatenate([np.flatnonzero(labels == c)[: 80 // (c + 1) ** 2] for c in range(6)])
    found = check(images[rare], probabilities(labels[rare], 0.6), probabilities(labels[rare], 0.0))
    assert found.verdict != "harmful"


def test_too_few_images_are_not_judged() -> None:
    images, labels = blobs(6, 1)
    found = check(images, probabilities(labels, 0.0), probabilities(labels, 1.0))
    assert found.verdict == "unclear"
    assert "Too few images to judge (6, at least 50" in found.sentence
    alone = check(images[:1], probabilities(labels[:1], 0.0), probabilities(labels[:1], 0.0))
    assert alone.agreement_before == 0.0


def test_many_images_are_judged_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = blobs()
    rows = probabilities(labels, 0.3)
    whole = check(images, rows, rows)
    monkeypatch.setattr(health, "MOST_QUERIES", 60)
    monkeypatch.setattr(health, "MOST_JUDGED", 120)
    sample = check(images, rows, rows)
    assert sample.n_images == whole.n_images == 240
    assert sample.agreement_before == pytest.approx(whole.agreement_before, abs=0.15)


def test_the_estimate_follows_the_truth() -> None:
    images, labels = blobs()
    for wrong_before, wrong_after in ((0.5, 0.1), (0.1, 0.5), (0.3, 0.3)):
        before, after = probabilities(labels, wrong_before), probabilities(labels, wrong_after, seed=1)
        true = np.mean(after.argmax(axis=1) == labels) - np.mean(before.argmax(axis=1) == labels)
        found = check(images, before, after)
        assert abs(found.expected_change - true) < 0.1
        assert 0 < found.standard_error < 0.05


def test_images_do_not_judge_themselves() -> None:
    images, labels = blobs(6, 40)
    texts = unit_rows(np.random.default_rng(3).normal(size=(6, images.shape[1])).astype(np.float32))
    assert health.expected_change(images, texts, 20.0, labels, labels)[0] == 0.0
    noise = unit_rows(np.random.default_rng(4).normal(size=(120, 32)).astype(np.float32))  # nothing to find
    before = (noise @ texts.T).argmax(axis=1)
    fitted = fit_gaussian_mixture(noise, texts, 20.0).probabilities
    after, rows = fitted.argmax(axis=1), np.arange(120)
    by_themselves = float(np.mean(fitted[rows, after] - fitted[rows, before]))
    assert health.expected_change(noise, texts, 20.0, before, after)[0] < 0.6 * by_themselves


def test_wrong_shapes_are_named() -> None:
    images, labels = blobs()
    rows = probabilities(labels, 0.3)
    with pytest.raises(InputError, match=r"\(240, 6\), got \(240, 6\) and \(239, 6\)"):
        check(images, rows, rows[1:])


def test_labels_overrule_texts_that_mislead() -> None:
    images, labels = blobs(8, 40)
    centers = images.reshape(8, 40, -1).mean(axis=1)
    misleading = unit_rows(np.roll(centers, 1, axis=0))  # every text lies where the images of another class do
    before, after = probabilities((labels + 1) % 8, 0.0, n_classes=8), probabilities(labels, 0.0, n_classes=8)
    assert health.check_health(images, before, after, misleading, 20.0).verdict == "harmful"
    known = np.arange(0, 320, 20)  # two of every class
    found = health.check_health(images, before, after, misleading, 20.0, labeled=images[known], labels=labels[known])
    assert found.verdict == "helpful"
    assert found.n_labels == 16
    assert "judged with 16 labels" in found.sentence
    assert "not verified" not in found.sentence
    assert health.ADVICE not in found.sentence


def test_the_order_of_the_images_does_not_change_the_verdict() -> None:
    images, labels = blobs()
    before, after = probabilities(labels, 0.5), probabilities(labels, 0.1, seed=1)
    first = check(images, before, after)
    order = np.random.default_rng(2).permutation(len(images))
    assert check(images[order], before[order], after[order]) == first
