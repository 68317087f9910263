"""The public functions work alone: examples run, plain lists are enough, and wrong shapes are named."""

from __future__ import annotations

import builtins
import doctest
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import captune
from captune.core.errors import InputError

FUNCTIONS = (
    "check_health",
    "confusion_margin",
    "detect_mismatch",
    "first_labels",
    "fit_gaussian_mixture",
    "top_k_per_class",
)
IMAGES = np.random.default_rng(0).normal(size=(12, 4)) + 4 * np.repeat(np.eye(3, 4), 4, axis=0)
TEXTS = np.eye(3, 4)
PROBABILITIES = np.full((12, 3), 1 / 3)


@pytest.mark.parametrize("name", dir(captune))
def test_every_public_name_is_found_and_explained(name: str) -> None:
    assert getattr(captune, name).__doc__


def test_types_in_public_signatures_are_public() -> None:
    public = [getattr(captune, name) for name in dir(captune)]
    classes = (captune.Run, captune.Session, captune.ImageClassifier)
    methods = [member for cls in classes for name, member in vars(cls).items() if not name.startswith("_")]
    functions = [f for f in (*public, *methods) if callable(f) and hasattr(f, "__annotations__")]
    named = {word for f in functions for word in re.findall(r"\b[A-Z]\w+", str(f.__annotations__.get("return", "")))}
    others = {"Any", "Sequence", "Iterator", "NDArray", "Floats", "Ints", "Bools", "Path", "Mapping", "None", "Self"}
    assert named - others <= set(captune.__all__)
    assert "Metrics" in named


def test_import_star_replaces_no_builtin() -> None:
    assert not set(captune.__all__) & set(dir(builtins)) - {"__version__"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_in_the_documentation_runs(name: str) -> None:
    function = getattr(captune, name)
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=dict(function.__globals__))
    assert example.examples
    said: list[str] = []
    assert doctest.DocTestRunner().run(example, out=said.append).failed == 0, "".join(said)


CALLS: dict[str, Callable[[Any], Any]] = {
    "check_health": lambda a: captune.check_health(a(IMAGES), a(PROBABILITIES), a(PROBABILITIES), a(TEXTS)).changed,
    "confusion_margin": lambda a: captune.confusion_margin(a(TEXTS @ TEXTS.T), a(np.array([3, 2, 1]))).matrix,
    "detect_mismatch": lambda a: captune.detect_mismatch(a(IMAGES), a(TEXTS)).frequency,
    "first_labels": lambda a: captune.first_labels(a(IMAGES), a(TEXTS), k=2).image_index,
    "fit_gaussian_mixture": lambda a: captune.fit_gaussian_mixture(a(IMAGES), a(TEXTS)).probabilities,
    "top_k_per_class": lambda a: captune.top_k_per_class(a(IMAGES), k=2).image_index,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_and_double_precision_are_enough(name: str) -> None:
    expected = CALLS[name](np.asarray)
    np.testing.assert_array_equal(CALLS[name](np.ndarray.tolist), expected)


@pytest.mark.parametrize("name", ["detect_mismatch", "first_labels", "fit_gaussian_mixture"])
def test_embeddings_of_any_length_are_compared_by_direction(name: str) -> None:
    unit = {id(a): a / np.linalg.norm(a, axis=1, keepdims=True) for a in (IMAGES, TEXTS)}
    np.testing.assert_array_equal(CALLS[name](lambda a: unit[id(a)]), CALLS[name](lambda a: 7 * a))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "one axis": (lambda: captune.detect_mismatch(IMAGES[0], TEXTS), r"\(images, width\), got \(4,\)"),
    "ragged": (lambda: captune.first_labels([[1.0], [1.0, 2.0]], TEXTS), r"\(images, width\)"),
    "words": (lambda: captune.first_labels([["a", "b"]], TEXTS), r"\(images, width\)"),
    "another width": (lambda: captune.first_labels(IMAGES[:, :3], TEXTS), r"\(12, 3\) and \(3, 4\)"),
    "NaN": (lambda: captune.fit_gaussian_mixture(np.where(IMAGES > 4, np.nan, IMAGES), TEXTS), "not finite"),
    "labels": (lambda: captune.fit_gaussian_mixture(IMAGES, TEXTS, labeled=TEXTS, labels=[0]), "1 labeled images"),
    "class ids": (lambda: captune.fit_gaussian_mixture(IMAGES, TEXTS, labeled=TEXTS, labels=[0, 1, 9]), "0..2"),
    "probabilities": (lambda: captune.check_health(IMAGES, PROBABILITIES, PROBABILITIES[:3], TEXTS), r"\(12, 3\)"),
    "similarity": (lambda: captune.confusion_margin(PROBABILITIES, [1, 2, 3]), r"\(3, 3\), got \(12, 3\)"),
    "counts": (lambda: captune.confusion_margin(np.eye(2), [1, -2]), "no negative"),
    "scores": (lambda: captune.top_k_per_class([0.1, 0.9], k=1), r"\(images, classes\)"),
    "k": (lambda: captune.top_k_per_class(PROBABILITIES, k=-1), "0 or more"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_shape_is_one_clear_error(kind: str) -> None:
    attempt, words = WRONG[kind]
    with pytest.raises(InputError, match=words):
        attempt()
