"""New images join a run: nothing of what people answered is lost, and a line says what is new."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import captune
from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError

NAMES = ("cat", "dog", "fox", "owl")


def make_vectors(n_images: int, seed: int) -> tuple[Floats, Ints]:
    centers = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0][:4]
    labels = np.arange(n_images) % 4
    vectors = centers[labels] + 0.12 * np.random.default_rng(seed).normal(size=(n_images, 16))
    return vectors.astype(np.float32), labels


def make_texts() -> captune.ClassTexts:
    centers = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0][:4]
    return captune.ClassTexts(NAMES, centers, 20.0)


def test_nothing_of_the_first_day_is_lost(tmp_path: Path) -> None:
    vectors, labels = make_vectors(80, 1)
    names = [f"a{i:02}" for i in range(80)]
    session = captune.open_session(captune.Embeddings(vectors, names), make_texts(), person="anna")
    for suggestion in session.suggest(10, checks=0.5):
        session.label(suggestion.image, NAMES[labels[suggestion.position]], suggestion=suggestion.kind)
    session.rename("cat", "kitten")
    session.merge(["fox", "owl"], "wild")
    session.save(tmp_path / "run")
    before, checks = dict(session.answers.used()), session.estimate().n_checks
    new, _ = make_vectors(24, 2)
    odd = -vectors[:2]
    more = captune.Embeddings(np.concatenate([vectors[:4], new, odd]), [*names[:4], *(f"b{i:02}" for i in range(26))])
    found = session.update(more)
    assert found.n_new == 26
    assert sum(found.grown.values()) == 26
    assert {"b24", "b25"} <= set(found.unlike)
    assert "26 new images" in str(found)
    assert session.answers.used() == before
    assert session.estimate().n_checks == checks
    assert session.names == ("kitten", "dog", "wild")
    assert found.change.n_images == 80
    session.save()
    every = captune.Embeddings(np.concatenate([vectors, new, odd]), [*names, *(f"b{i:02}" for i in range(26))])
    again = captune.open_session(tmp_path / "run", images=every)
    assert len(again.images) == 106
    assert again.answers.used() == before
    assert session.update(every).n_new == 0


def test_an_update_without_anything_new_changes_nothing() -> None:
    vectors, _ = make_vectors(40, 1)
    session = captune.open_session(captune.Embeddings(vectors), make_texts())
    before, classifier = session.predictions.probabilities.copy(), session.engine.classifier
    assert session.update(captune.Embeddings(vectors)).n_new == 0
    assert session.engine.classifier is classifier
    np.testing.assert_array_equal(session.predictions.probabilities, before)


def test_other_embeddings_with_the_same_names_are_refused() -> None:
    session = captune.open_session(captune.Embeddings(make_vectors(40, 1)[0]), make_texts())
    with pytest.raises(InputError, match="another image"):
        session.update(captune.Embeddings(make_vectors(40, 2)[0]))
