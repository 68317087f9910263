"""The first pseudo-labels use descriptions where names mislead, and each image once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captune.core.arrays import Floats, softmax_rows, unit_rows
from captune.core.errors import InputError
from captune.labeling.pseudo_labels import Source
from captune.labeling.selection import first_labels, top_k_per_class


def unit(*rows: list[float]) -> Floats:
    return unit_rows(np.array(rows, dtype=np.float32))


def random_task(seed: int, n_images: int = 60, n_classes: int = 5) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(seed)
    images = unit_rows(generator.standard_normal((n_images, 8)).astype(np.float32))
    return images, unit_rows(generator.standard_normal((n_classes, 8)).astype(np.float32))


def test_without_descriptions_it_is_the_top_k_of_zero_shot() -> None:
    images, texts = random_task(0)
    chosen = first_labels(images, texts, 20.0, k=4)
    expected = top_k_per_class(softmax_rows(20.0 * images @ texts.T), 4)
    assert chosen.image_index.tolist() == expected.image_index.tolist()
    assert chosen.labels.tolist() == expected.labels.tolist()
    assert set(chosen.source.tolist()) == {Source.NAME}


def test_a_description_takes_the_place_of_a_misleading_name() -> None:
    images = unit([1, 0, 0], [0.9, 0.1, 0], [0, 0, 1], [0.1, 0, 0.9])
    texts = unit([1, 0, 0], [0.9, 0.2, 0])  # the second name points at images of the first class
    truth = np.array([0, 0, 1, 1])
    assert first_labels(images, texts, 50.0, k=1).precision(truth) == 0.5
    chosen = first_labels(images, texts, 50.0, {1: unit([0, 0, 1])[0]}, k=2)
    assert chosen.precision(truth) == 1.0
    assert [Source(s).name for s in chosen.source] == ["NAME", "NAME", "DESCRIPTION", "DESCRIPTION"]
    assert (chosen.confidence > 0.99).all()


def test_an_image_wanted_twice_goes_to_its_more_probable_class() -> None:
    # Image 0 has the highest cosine with the description, but the name of class 0 fits it better.
    images = unit([1.0, 0.6, 0], [0, 0.5, 1.0], [0.1, 0, 1.0])
    texts = unit([1, 0, 0], [0, 0, -1])
    description = unit([0, 1, 0])[0]
    chosen = first_labels(images, texts, 20.0, {1: description}, k=1)
    assert dict(zip(chosen.image_index.tolist(), chosen.labels.tolist(), strict=True)) == {0: 0, 1: 1}


def test_classes_without_a_description_rank_by_names_alone() -> None:
    # The description fits image 0 nearly as well as class 0 does; among the names alone, image 0 is the clearer one.
    images = unit([1.0, 0.0, 0.9], [0.8, 0.3, 0.0], [0, 0, 1])
    texts = unit([1, 0, 0], [0, 1, 0])
    chosen = first_labels(images, texts, 10.0, {1: unit([0, 0, 1])[0]}, k=1)
    assert dict(zip(chosen.image_index.tolist(), chosen.labels.tolist(), strict=True)) == {0: 0, 2: 1}


def test_described_classes_rank_by_cosine_or_by_probability() -> None:
    # Image 0 is nearer to the description, image 1 is farther but nothing else fits it.
    images = unit([0.75, 0.8, 0], [0, 0.7, 0.8], [1, 0, 0])
    texts = unit([1, 0, 0], [-1, 0, 0])
    described = {1: unit([0, 1, 0])[0]}
    by_cosine = first_labels(images, texts, 10.0, described, k=1)
    by_probability = first_labels(images, texts, 10.0, described, k=1, rank_described_by="probability")
    assert by_cosine.image_index[by_cosine.labels == 1].tolist() == [0]
    assert by_probability.image_index[by_probability.labels == 1].tolist() == [1]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 40), st.integers(1, 6), st.sampled_from(["cosine", "probability"]))
def test_quotas_and_allowed_classes_hold(seed: int, n_images: int, k: int, ranking: str) -> None:
    images, texts = random_task(seed, n_images)
    allowed = [1, 3, 4]
    described = {0: texts[2], 3: images[0] if n_images else texts[0]}
    chosen = first_labels(images, texts, 30.0, described, k=k, allowed=allowed, rank_described_by=ranking)  # type: ignore[arg-type]
    assert set(chosen.labels.tolist()) <= set(allowed)
    assert chosen.counts().max(initial=0) <= k
    assert len(chosen) == min(n_images, k * len(allowed))
    assert (chosen.source == np.where(chosen.labels == 3, Source.DESCRIPTION, Source.NAME)).all()


def test_the_order_of_images_does_not_matter() -> None:
    images, texts = random_task(3)
    described = {2: texts[0] * np.float32(-1)}
    mixed = np.random.default_rng(0).permutation(len(images))
    straight = first_labels(images, texts, 10.0, described, k=5)
    shuffled = first_labels(images[mixed], texts, 10.0, described, k=5).reindexed(mixed)
    pairs = [set(zip(x.image_index.tolist(), x.labels.tolist(), strict=True)) for x in (straight, shuffled)]
    assert pairs[0] == pairs[1]


def test_wrong_input_says_what_was_expected() -> None:
    images, texts = random_task(0)
    with pytest.raises(InputError):
        first_labels(images, texts[:, :7], 10.0)
    for described in ({9: texts[0]}, {1: texts[0, :3]}):
        with pytest.raises(InputError):
            first_labels(images, texts, 10.0, described)
