"""A scikit-learn estimator around `adapt`, for embeddings and for images, with labels for all, some or no images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from captune.backbones.base import Backbone
from captune.concepts.confusion import class_prototypes
from captune.core.arrays import Bools, Floats, Ints
from captune.core.settings import RunSettings
from captune.data.images import ImageCollection
from captune.data.inputs import Images, collect_images
from captune.data.precomputed import ClassTexts, Embeddings
from captune.data.task import AdaptationTask, LabeledImages
from captune.data.vocabulary import read_classes
from captune.pipeline import carry_out
from captune.plan import Plan, make_plan, read_class_texts
from captune.results.run import Run

PREFIX = "settings__"


class CaptuneClassifier(ClassifierMixin, BaseEstimator):
    """Adapts a CLIP-style model to embeddings or images, whose labels may be missing.

    A matrix of numbers `(images, width)` is taken as embeddings; everything else that `captune.adapt` takes is taken
    as images. In `y`, None and NaN mean that an image has no label; without `y`, no image has one.

    Args:
        classes: Class names, a mapping from names to descriptions, `ClassTexts`, or a path; None for the labels in `y`.
            Embeddings need `ClassTexts`, the backbone that made them, or a label of every class; with labels alone,
            a class is represented by the mean of its labeled embeddings.
        method: Adaptation method; see `captune list methods`.
        backbone: The id of a backbone, or a model in memory (`captune.wrap`); None for the default with images, and
            for no backbone with embeddings.
        describer: The id of a describer, a mapping from names to sentences, or a function.
        preset: Preset of the method, `quick` or `full`; None for the one that suits the input and the machine.
        settings: Other settings of `captune.adapt` by name. A search sets one of them as `settings__name`.
        random_state: Random seed.
        verbose: Whether to show messages and progress.

    Attributes:
        classes_: The class labels, in the order of the columns of `predict_proba`.
        run_: The results of `captune.adapt`.
        n_features_in_: The width of the embeddings that `fit` was called with.
        feature_names_in_: The names of their columns, if they were a data frame.

    Examples:
        Two labeled embeddings, and four without a label.

        >>> X = [[1.0, 0.1], [0.9, 0.2], [0.8, 0.1], [0.1, 1.0], [0.2, 0.9], [0.1, 0.8]]
        >>> model = CaptuneClassifier(method="transductive").fit(X, ["cat", None, None, "dog", None, None])
        >>> model.predict(X)
        array(['cat', 'cat', 'cat', 'dog', 'dog', 'dog'], dtype='<U3')
    """

    classes_: NDArray[Any]
    run_: Run

    def __init__(
        self,
        classes: str | Path | Sequence[str | Mapping[str, str]] | Mapping[str, Any] | ClassTexts | None = None,
        *,
        method: str = RunSettings.method,
        backbone: str | Backbone | None = None,
        describer: Any = None,  # noqa: ANN401 (an id, a mapping or a function)
        preset: str | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,  # noqa: ANN401 (what scikit-learn takes)
        verbose: bool = False,
    ) -> None:
        self.classes, self.method, self.backbone, self.describer = classes, method, backbone, describer
        self.preset, self.settings, self.random_state, self.verbose = preset, settings, random_state, verbose

    def fit(self, X: Images, y: Any = None) -> CaptuneClassifier:  # noqa: ANN401, N803
        """Adapt to embeddings or images; images without a label in `y` are used too."""
        images = self._read(X, reset=True)
        labels, known = _read_labels(y, len(images))
        classes, self.classes_ = self._read_classes(labels[known])
        ids = np.full(len(images), -1, dtype=np.int64)
        ids[known] = _class_ids(labels[known].tolist(), self.classes_.tolist())
        self.run_ = carry_out(self._plan(images, classes, ids), quiet=not self.verbose)
        return self

    def predict_proba(self, X: Images) -> Floats:  # noqa: N803
        """Return probabilities `(images, classes)`; NaN, and a warning, for images that cannot be read."""
        check_is_fitted(self)
        return self.run_.classifier.predict_proba(self._read(X, reset=False))

    def predict(self, X: Images) -> NDArray[Any]:  # noqa: N803
        """Return the most probable class of each image; None, and a warning, for images that cannot be read."""
        rows = self.predict_proba(X)
        is_skipped, best = np.isnan(rows[:, 0]), self.classes_[rows.argmax(axis=1)]
        if is_skipped.any():
            best = best.astype(object)
            best[is_skipped] = None
        return best

    def score(self, X: Images, y: Any, sample_weight: Any = None) -> float:  # noqa: ANN401, N803
        """Return the accuracy on the images that have a label and can be read."""
        predicted = self.predict(X)
        labels, known = _read_labels(y, len(predicted))
        known &= np.asarray([label is not None for label in predicted])
        if not known.any():
            raise ValueError(f"None of the {len(predicted)} images has a label in y.")
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(np.average(predicted.astype(object)[known] == labels[known], weights=weights))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; with `deep`, also each entry of `settings` as `settings__name`."""
        params = super().get_params(deep=False)
        inner = self.settings if deep and isinstance(self.settings, Mapping) else {}
        return params | {f"{PREFIX}{name}": value for name, value in inner.items()}

    def set_params(self, **params: Any) -> CaptuneClassifier:  # noqa: ANN401
        """Set parameters; `settings__name` sets one entry of `settings`."""
        inner = {name.removeprefix(PREFIX): params.pop(name) for name in list(params) if name.startswith(PREFIX)}
        super().set_params(**params)
        if inner:
            self.settings = {**(self.settings or {}), **inner}
        return self

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.classes is None
        return tags

    def _read(self, source: Images, reset: bool) -> ImageCollection:
        """Return embeddings, checked as scikit-learn does, or images."""
        if _is_matrix(source):
            limits = {"ensure_min_samples": 2, "ensure_min_features": 2} if reset else {}
            return Embeddings(validate_data(self, source, reset=reset, **limits))
        for name in ("n_features_in_", "feature_names_in_"):  # of an earlier fit to embeddings
            if reset and hasattr(self, name):
                delattr(self, name)
        return collect_images(source, column=str((self.settings or {}).get("image_column", "")), single=not reset)

    def _read_classes(self, labels: NDArray[Any]) -> tuple[Any, NDArray[Any]]:
        """Return the classes as `adapt` takes them, and the labels that stand for them."""
        if self.classes is not None:
            texts = read_class_texts(self.classes)
            names = read_classes(self.classes).names if texts is None else texts.names
            return self.classes if texts is None else texts, np.asarray(names)
        if not len(labels):
            raise ValueError(
                "Without classes, CaptuneClassifier requires y to be passed, but the target y is None or has no labels."
            )
        found = np.unique(np.asarray(labels.tolist()))
        if len(found) < 2:
            raise ValueError(f"CaptuneClassifier needs labels of at least two classes, got one class: {found[0]!r}.")
        return tuple(str(label) for label in found.tolist()), found

    def _plan(self, images: ImageCollection, classes: Any, ids: Ints) -> Plan:  # noqa: ANN401
        """Return the plan of the run; if all images have a label, they are also used without it."""
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31 - 1)
        values = {"method": self.method, "seed": seed, **(self.settings or {})}
        models = {"backbone": self.backbone, "describer": self.describer, "preset": self.preset}
        values |= {name: value for name, value in models.items() if value is not None}
        known = ids >= 0
        has_texts = isinstance(classes, (ClassTexts, Mapping)) or self.backbone is not None
        if isinstance(images, Embeddings) and not has_texts and len(np.unique(ids[known])) == len(self.classes_):
            nothing = np.zeros((len(self.classes_), images.width), dtype=np.float32)
            means = class_prototypes(images.vectors[known], ids[known], nothing)
            classes = ClassTexts(tuple(map(str, self.classes_.tolist())), means)
        if known.all():
            plan = make_plan(images, classes, None, values)
            return dataclasses.replace(
                plan, task=AdaptationTask(plan.task.vocabulary, images, LabeledImages(images, ids))
            )
        labels = [str(self.classes_[c]) if c >= 0 else None for c in ids]  # by name, which may look like a class id
        return make_plan(images, classes, labels if known.any() else None, values)


def _is_matrix(source: Any) -> bool:  # noqa: ANN401
    """Return whether X looks like numbers for scikit-learn to check, and not like images."""
    if isinstance(source, (list, tuple)) and len(source):
        return np.ndim(source[0]) <= 1 and np.asarray(source[0]).dtype.kind in "biufc"
    if isinstance(source, (str, Path, ImageCollection)) or hasattr(source, "column_names"):  # a dataset or a table
        return False
    if hasattr(source, "columns") and hasattr(source, "dtypes"):  # a data frame
        return all(getattr(kind, "kind", "O") in "biufc" for kind in source.dtypes)
    shape = getattr(source, "shape", None)
    if shape is None and hasattr(source, "__array__"):
        source = np.asarray(source)
        shape = source.shape
    kind = getattr(getattr(source, "dtype", None), "kind", "f")
    return shape is not None and (len(shape) == 2 or (len(shape) < 2 and kind in "biufc"))


def _read_labels(y: Any, n_images: int) -> tuple[NDArray[Any], Bools]:  # noqa: ANN401
    """Return the labels as Python objects `(images,)`, and which images have one."""
    if y is None:
        return np.full(n_images, None), np.zeros(n_images, dtype=np.bool_)
    # Made of objects first: NumPy would turn NaN among words into the word "nan".
    array = np.asarray(y, dtype=object) if isinstance(y, (list, tuple)) else np.asarray(y)
    labels = column_or_1d(array, warn=True).astype(object)
    check_consistent_length(labels, np.empty(n_images))
    kinds = ("NoneType", "NAType", "NaTType")
    missing = [
        type(one).__name__ in kinds or (isinstance(one, (float, np.floating)) and np.isnan(one)) for one in labels
    ]
    known = ~np.array(missing, dtype=np.bool_)
    if known.any():
        values = np.asarray(labels[known].tolist())
        assert_all_finite(values, input_name="y")
        check_classification_targets(values)
    return labels, known


def _class_ids(labels: list[Any], classes: list[Any]) -> list[int]:
    """Return the position of each label among the classes."""
    positions = {label: position for position, label in enumerate(classes)}
    for label in labels:
        if label not in positions:
            raise ValueError(
                f"y contains {label!r}, which is not one of the {len(classes)} classes ({classes[0]!r}, ...). Labels "
                "are class names; for class ids, pass classes_in_order[y]."
            )
    return [positions[label] for label in labels]
