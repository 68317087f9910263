"""The best of several descriptions, and their mean; descriptions of pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from captune.backbones.base import load_backbone
from captune.concepts.alignment import (
    align_concepts,
    choose_descriptions,
    choose_texts,
    confused_pairs,
    descriptions_help,
)
from captune.core.arrays import Floats, unit_rows
from captune.data.vocabulary import Vocabulary, read_descriptions
from captune.describers.base import FunctionDescriber
from captune.embeddings.embed import embed_classes
from captune.world import class_names, render_world


def random_rows(n: int, width: int = 6, seed: int = 0) -> Floats:
    return unit_rows(np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32))


def test_the_description_that_points_at_one_cluster_is_chosen() -> None:
    centers = np.eye(4, dtype=np.float32)
    noise = 0.02 * np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    images = unit_rows(np.repeat(centers, 10, axis=0) + noise)
    vague = unit_rows(np.ones((3, 4), dtype=np.float32))
    texts = np.concatenate([vague[:2], centers[2:3], vague[2:]])
    for runs in (1, 5):
        assert choose_descriptions(images, {7: texts, 2: texts[::-1]}, 20.0, runs=runs) == {7: 2, 2: 1}


def test_one_description_is_the_best_one() -> None:
    assert choose_descriptions(random_rows(9), {4: random_rows(1, seed=1)}, 100.0) == {4: 0}


def test_one_image_takes_the_most_similar_description() -> None:
    texts = random_rows(5, seed=2)
    assert choose_descriptions(texts[3:4], {0: texts}, 100.0) == {0: 3}


def test_without_images_the_first_description_is_taken() -> None:
    assert choose_descriptions(random_rows(0), {0: random_rows(5)}, 100.0) == {0: 0}
    assert choose_descriptions(random_rows(3), {}, 100.0) == {}


@given(st.integers(0, 12), st.lists(st.integers(1, 7), max_size=4), st.integers(1, 3))
def test_any_number_of_images_and_descriptions_has_an_answer(n_images: int, counts: list[int], runs: int) -> None:
    descriptions = {c: random_rows(n, seed=c) for c, n in enumerate(counts)}
    chosen = choose_descriptions(random_rows(n_images), descriptions, 100.0, runs=runs)
    assert list(chosen) == list(descriptions)
    assert all(0 <= choice < len(descriptions[class_id]) for class_id, choice in chosen.items())


def test_labels_choose_between_names_and_descriptions_if_they_clearly_differ() -> None:
    centers = np.eye(6, dtype=np.float32)
    labels = np.arange(36) % 6
    images = unit_rows(centers[labels] + 0.05 * random_rows(36))
    wrong = np.roll(centers, 1, axis=0)
    for names, described, answer in ((wrong, centers, True), (centers, wrong, False)):
        is_described, reason = choose_texts(images, names, described, 20.0, (images[:12], labels[:12]))
        assert is_described is answer
        right, other = (12, 0) if answer else (0, 12)
        assert f"Of 12 labels, descriptions alone get {right} right and names {other}" in reason


def test_few_labels_and_those_of_classes_without_descriptions_leave_the_choice_to_the_images() -> None:
    centers = np.eye(6, dtype=np.float32)
    labels = np.arange(36) % 6
    images = unit_rows(centers[labels] + 0.05 * random_rows(36))
    wrong = np.roll(centers, 1, axis=0)
    by_images = descriptions_help(images, wrong, centers, 20.0)
    for known in (None, np.array([], dtype=np.int64), np.arange(3)):
        given_labels = None if known is None else (images[known], labels[known])
        is_described, reason = choose_texts(images, wrong, centers, 20.0, given_labels)
        assert is_described is by_images
        assert "separate the images" in reason
    partly = wrong.copy()
    partly[0] = centers[0]
    others = np.flatnonzero(labels != 0)
    assert "separate the images" in choose_texts(images, wrong, partly, 20.0, (images[others], labels[others]))[1]


def test_only_confused_classes_are_told_from_each_other_and_only_if_that_suits_the_images() -> None:
    backbone, world = load_backbone("embedded:patterns"), render_world(6, seed=1)
    with torch.inference_mode():
        images = backbone.encode_image(backbone.preprocessing.normalize(world.images)).numpy()
    vocabulary, asked = Vocabulary(class_names()), list[str]()
    names = embed_classes(backbone, vocabulary)
    known = read_descriptions(Path(__file__).parents[3] / "benchmarks" / "pairs" / "patterns.yaml")

    def ask(key: str) -> list[str]:
        asked.append(key)
        return known.get(key, [])

    found = align_concepts(images, vocabulary, backbone, FunctionDescriber(ask), describe="confused")
    pairs = confused_pairs(images, names, backbone.logit_scale, np.arange(len(vocabulary)))
    both = [(vocabulary.names[a], vocabulary.names[b]) for pair in pairs for a, b in (pair, pair[::-1])]
    assert asked == [f"{a} vs. {b}" for a, b in both]
    assert 0 < len(pairs) < len(vocabulary) ** 2 / 8
    assert "descriptions are used" in found.reason
    told = {a for a, b in both if f"{a} vs. {b}" in known}
    assert {vocabulary.names[c] for c in found.described} == told == set(found.descriptions.found)
    after = (images @ embed_classes(backbone, found.vocabulary).T).argmax(axis=1) == world.labels
    assert after.mean() > ((images @ names.T).argmax(axis=1) == world.labels).mean() + 0.1

    wrong = FunctionDescriber(lambda key: known.get(" vs. ".join(reversed(key.split(" vs. ")))))
    refused = align_concepts(images, vocabulary, backbone, wrong, describe="confused")
    assert refused.vocabulary == vocabulary
    assert not len(refused.described)
