"""The scikit-learn estimator: scikit-learn's own checks on embeddings, missing labels, searches, pipelines, images."""

from __future__ import annotations

import doctest
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from toys import ToyBackbone, write_images

import captune
from captune import CaptuneClassifier
from captune.core.errors import InputError

CANNOT_APPLY = {
    "check_estimators_dtypes": "rounds its data to integers, which leaves a row of zeros: it has no direction, so it "
    "is rejected as an embedding",
}
"""The checks of scikit-learn that fail, and why."""
NAMES = ["cat", "dog", "bird"]
TEXTS = captune.ClassTexts(NAMES, np.eye(3, 6))
TRUTH = np.repeat(NAMES, 20)
CAP = {"epochs": 2, "iterations": 2, "k": 4}


@parametrize_with_checks(
    [CaptuneClassifier(method="transductive"), CaptuneClassifier(method="cap", settings=CAP)],
    expected_failed_checks=lambda estimator: CANNOT_APPLY,
)
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def embeddings(seed: int = 0) -> Any:
    noise = np.random.default_rng(seed).normal(size=(60, 6))
    return np.repeat(np.eye(3, 6), 20, axis=0) + 0.15 * noise


def test_the_example_in_the_documentation_runs() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(CaptuneClassifier, globs=vars(captune.estimator))
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("method", ["cap", "transductive", "zero_shot"])
def test_no_labels_are_needed_with_class_texts(method: str) -> None:
    model = CaptuneClassifier(TEXTS, method=method, settings=CAP if method == "cap" else None).fit(embeddings())
    assert model.classes_.tolist() == NAMES
    assert model.score(embeddings(1), TRUTH) > 0.9
    np.testing.assert_allclose(model.predict_proba(embeddings()), model.run_.predictions.probabilities, atol=1e-5)


PARTS: dict[str, Any] = {
    "None": [label if i % 4 == 0 else None for i, label in enumerate(TRUTH)],
    "NaN among words": [label if i % 4 == 0 else float("nan") for i, label in enumerate(TRUTH)],
    "objects": np.array([label if i % 4 == 0 else None for i, label in enumerate(TRUTH)], dtype=object),
}


@pytest.mark.parametrize("kind", [*PARTS, "series", "categories"])
def test_some_labels(kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    y = PARTS.get(kind, pandas.Series(PARTS["None"], dtype="category" if kind == "categories" else None))
    model = CaptuneClassifier(method="transductive").fit(embeddings(), y)
    assert model.classes_.tolist() == sorted(NAMES)
    assert model.score(embeddings(1), TRUTH) > 0.9
    assert model.score(embeddings(), y) > 0.9, "images without a label are left out"
    assert (model.run_.settings["method"], len(model.run_.images)) == ("transductive", 60)


def test_numbers_are_labels_and_not_class_ids() -> None:
    y = np.repeat([3.0, 1.0, -1.0], 20)
    y[::3] = np.nan
    model = CaptuneClassifier(method="transductive").fit(embeddings(), y)
    assert model.classes_.tolist() == [-1, 1, 3]
    assert np.mean(model.predict(embeddings(1)) == np.repeat([3, 1, -1], 20)) > 0.9


def test_labels_of_some_classes_with_texts_of_all() -> None:
    y = [label if label == "cat" else None for label in TRUTH]
    model = CaptuneClassifier(TEXTS, method="transductive").fit(embeddings(), y)
    assert model.score(embeddings(1), TRUTH) > 0.9


def test_searches_over_parameters_and_settings() -> None:
    grid = {"settings__image_weight": [0.5, 3.0], "method": ["transductive"]}
    found = GridSearchCV(CaptuneClassifier(TEXTS), grid, cv=2).fit(embeddings(), TRUTH)
    assert found.best_score_ > 0.9
    assert found.best_estimator_.run_.settings["image_weight"] == found.best_params_["settings__image_weight"]
    few = np.array([label if i % 3 == 0 else None for i, label in enumerate(TRUTH)], dtype=object)
    shuffled = KFold(3, shuffle=True, random_state=0)
    assert cross_val_score(CaptuneClassifier(TEXTS, method="zero_shot"), embeddings(), few, cv=shuffled).min() > 0.9


def test_clones_pipelines_and_pickles() -> None:
    pandas = pytest.importorskip("pandas")
    model = CaptuneClassifier(TEXTS, method="transductive", settings={"image_weight": 2.0})
    copy = clone(model).set_params(settings__alpha=5.0)
    assert copy.settings == {"image_weight": 2.0, "alpha": 5.0}
    assert model.settings == {"image_weight": 2.0}
    assert copy.get_params()["settings__alpha"] == 5.0
    frame = pandas.DataFrame(embeddings(), columns=list("abcdef"))
    made = make_pipeline(StandardScaler().set_output(transform="pandas"), copy).fit(frame, TRUTH)
    assert made[-1].feature_names_in_.tolist() == list("abcdef")
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again.predict_proba(frame), made.predict_proba(frame))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [str(path) for path in sorted(write_images(tmp_path_factory.mktemp("photos"), 9).glob("*.png"))]


def test_images(photos: list[str]) -> None:
    model = CaptuneClassifier(NAMES, method="zero_shot", backbone=ToyBackbone(), settings={"workers": 0})
    expected = captune.adapt(photos, NAMES, method="zero_shot", backbone=ToyBackbone(), workers=0, quiet=True)
    names = [NAMES[c] for c in expected.predictions.labels]
    assert model.fit(photos).predict(photos).tolist() == names
    assert model.fit(np.array(photos)).predict(photos[0]).tolist() == names[:1]
    assert model.score(photos, names) == 1
    labels = [names[i] if i < 6 else None for i in range(9)]
    assert set(clone(model).set_params(classes=None).fit(photos, labels).classes_) == set(names[:6])
    table = pytest.importorskip("pyarrow").table({"path": photos})
    assert model.predict(table).tolist() == names
    with pytest.raises(InputError, match="width"):
        model.predict(captune.Embeddings(np.eye(3)))


def test_embeddings_with_names_that_a_backbone_embeds() -> None:
    model = CaptuneClassifier(NAMES, method="zero_shot", backbone=ToyBackbone()).fit(np.eye(12)[:5])
    assert model.n_features_in_ == 12
    assert not hasattr(clone(model), "run_")


BAD: dict[str, tuple[Any, Any, str]] = {
    "a class that is not known": (CaptuneClassifier(TEXTS), ["cat"] * 59 + ["horse"], "y contains 'horse'"),
    "class ids": (CaptuneClassifier(TEXTS), np.repeat([0, 1, 2], 20), "Labels are class names"),
    "another length": (CaptuneClassifier(TEXTS), ["cat"], "inconsistent numbers of samples"),
    "one class": (CaptuneClassifier(), ["cat"] * 60, "at least two classes"),
    "no labels": (CaptuneClassifier(), None, "requires y"),
    "only missing labels": (CaptuneClassifier(), [None] * 60, "requires y"),
    "names without texts": (CaptuneClassifier(NAMES), None, "Embeddings need class texts"),
    "an unknown setting": (
        CaptuneClassifier(TEXTS, method="transductive", settings={"image_wieght": 1}),
        None,
        "Did you mean 'image_weight'",
    ),
    "an unknown method": (CaptuneClassifier(TEXTS, method="transductiv"), None, "Did you mean 'transductive'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_clear_error(kind: str) -> None:
    model, y, words = BAD[kind]
    with pytest.raises((ValueError, InputError), match=words):
        model.fit(embeddings(), y)


def test_nothing_is_left_of_another_kind_of_input(photos: list[str]) -> None:
    model = CaptuneClassifier(TEXTS, method="zero_shot").fit(embeddings())
    model.set_params(classes=NAMES, backbone=ToyBackbone(), settings={"workers": 0}).fit(photos)
    assert not hasattr(model, "n_features_in_")


def test_the_same_seed_gives_the_same_classifier() -> None:
    first, second = (CaptuneClassifier(method="cap", settings=CAP).fit(embeddings(), TRUTH) for _ in range(2))
    np.testing.assert_array_equal(first.predict_proba(embeddings()), second.predict_proba(embeddings()))
