"""What every method keeps, whoever wrote it: seeds, frozen weights, all classes, no harm from odd images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import ShunnedClass, ToyBackbone, write_images

import captune
from captune.core import registry, runtime
from captune.core.arrays import Floats, Ints
from captune.core.errors import InputError
from captune.core.settings import RunSettings, build, explain
from captune.data.images import find_images
from captune.data.task import AdaptationTask, make_task
from captune.data.vocabulary import Vocabulary
from captune.embeddings.cache import EmbeddingCache
from captune.methods.base import Context
from captune.results.classifier import Classifier

METHODS = registry.names("methods")
SHORT: dict[str, Any] = {
    "rounds": 2,
    "epochs": 1,
    "iterations": 2,
    "train_batch": 8,
    "warmup_epochs": 0,
    "k": 2,
    "strong_views": 1,
    "ensemble": 2,
}
"""Values that make a method short, where it has such a setting."""
PRESETS = [(name, preset) for name in METHODS for preset in (registry.load("methods", name).presets or ("",))]


def short(name: str, preset: str = "") -> dict[str, Any]:
    method = registry.load("methods", name)
    known = {field.name for field in dataclasses.fields(method.Settings)}
    values = {key: value for key, value in SHORT.items() if key in known}
    chosen = method.presets.get(preset or "quick", {})
    return {key: 1 if chosen.get(key) == 1 else value for key, value in values.items()}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_images(tmp_path_factory.mktemp("photos"), 8, side=36)
    (folder / "bad.jpg").write_bytes(b"not an image")
    return folder


def adapt(name: str, photos: Path, clip: Path, cache: Path, **changes: Any) -> captune.Run:
    common = {"backbone": f"hf:{clip}", "workers": 0, "quiet": True, "cache": str(cache), "batch_size": 4}
    return captune.adapt(
        photos, ["cat", "dog", "bird"], method=name, **{**common, **short(name, changes.get("preset", "")), **changes}
    )


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_a_method_keeps_its_promises(name: str, preset: str, photos: Path, clip_folder: Path, tmp_path: Path) -> None:
    run = adapt(name, photos, clip_folder, tmp_path / "cache", out=tmp_path / "run", preset=preset)
    probabilities = run.predictions.probabilities
    assert probabilities.shape == (8, 3)
    assert np.isfinite(probabilities).all()
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-4)
    assert list(run.skipped.values()) == ["not an image of a known format"]
    from captune.backbones.hf import HuggingFace

    frozen = HuggingFace.load(str(clip_folder))
    assert run.classifier.backbone.fingerprint() == frozen.fingerprint()  # not one bit of the weights moved
    loaded = captune.load(tmp_path / "run")
    paths = [run.images.paths[i] for i in run.predictions.image_index]
    assert np.allclose(loaded.predict_proba(paths), probabilities, atol=1e-4)


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_the_same_seed_gives_the_same_result(
    name: str, preset: str, photos: Path, clip_folder: Path, tmp_path: Path
) -> None:
    first = adapt(name, photos, clip_folder, tmp_path / "1", seed=7, preset=preset)
    second = adapt(name, photos, clip_folder, tmp_path / "2", seed=7, preset=preset)
    assert first.predictions.probabilities.tobytes() == second.predictions.probabilities.tobytes()


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_order_and_names_of_the_files_change_nothing(
    name: str, preset: str, photos: Path, clip_folder: Path, tmp_path: Path
) -> None:
    first = adapt(name, photos, clip_folder, tmp_path / "1", out=tmp_path / "first", preset=preset)
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    files = [first.images.paths[i] for i in first.predictions.image_index]
    order = np.random.default_rng(3).permutation(len(files))
    for number, place in enumerate(order):
        (renamed / f"{number}{files[place].suffix}").write_bytes(files[place].read_bytes())
    second = adapt(name, renamed, clip_folder, tmp_path / "2", out=tmp_path / "second", preset=preset)
    assert first.predictions.probabilities[order].tobytes() == second.predictions.probabilities.tobytes()
    assert first.kept == second.kept
    saved = [next((tmp_path / run).rglob("classifier.safetensors")).read_bytes() for run in ("first", "second")]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("name", METHODS)
def test_settings_are_frozen_explained_and_strict(name: str) -> None:
    settings = registry.load("methods", name).Settings
    fields = dataclasses.fields(settings)
    assert settings.__dataclass_params__.frozen
    assert set(explain(settings)) == {field.name for field in fields}
    assert not {field.name for field in fields} & {field.name for field in dataclasses.fields(RunSettings)}
    assert build(settings, {}, "settings") == settings()
    with pytest.raises(InputError, match="no setting 'no_such_setting'"):
        build(settings, {"no_such_setting": 1}, "settings")


@pytest.mark.parametrize("role", ["methods", "backbones", "tuners", "describers", "datasets"])
def test_every_plugin_loads_and_says_what_it_is(role: Any) -> None:
    for name in registry.names(role):
        if name != "open_clip":  # an extra, which may not be installed
            plugin = registry.load(role, name)
            assert registry.name_of(role, plugin) == name
        assert len(registry.summary(role, name)) > 10


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("noise"), 24)


def make(noise: Path, n_classes: int, labels: Ints | None = None, n_images: int = 24) -> AdaptationTask:
    vocabulary = Vocabulary(tuple(f"class {i}" for i in range(n_classes)))
    images = find_images(noise).subset(np.arange(n_images))
    return make_task(vocabulary, images, labels)


def given(n_classes: int, per_class: int, n_images: int = 24) -> Ints:
    """Label the first images, so many of each of the first classes."""
    labels = np.full(n_images, -1, dtype=np.int64)
    labels[: n_classes * per_class] = np.repeat(np.arange(n_classes), per_class)
    return labels


CASES: dict[str, dict[str, Any]] = {
    "no labels at all": {"n_classes": 4},
    "two labels for every class": {"n_classes": 4, "labels": given(4, 2)},
    "all labels of some classes": {"n_classes": 5, "labels": given(3, 5)},
    "labels, and one class left": {"n_classes": 4, "labels": given(3, 5)},
    "one image for every class": {"n_classes": 4, "n_images": 4},
    "one image": {"n_classes": 2, "n_images": 1},
    "two classes": {"n_classes": 2},
    "more classes than images": {"n_classes": 300},
}


def adapt_toy(name: str, task: AdaptationTask, backbone: ToyBackbone, cache: Path) -> tuple[Floats, Context]:
    """Return the probabilities of all unlabeled images, and what the method left in its context."""
    engine = runtime.start(seed=3, workers=0, quiet=True)
    context = Context(runtime=engine, cache=EmbeddingCache(cache), batch_size=8)
    method = registry.load("methods", name)
    settings = build(method.Settings, {**method.presets.get("quick", {}), **short(name)}, "settings")
    tuner = method(settings).adapt(task, backbone, context)
    vectors = context.embed(backbone, task.unlabeled).vectors
    return Classifier.from_tuner(tuner).score_embeddings(vectors), context


def check_toy(name: str, task: AdaptationTask, backbone: ToyBackbone, cache: Path) -> None:
    before = backbone.fingerprint()
    probabilities, context = adapt_toy(name, task, backbone, cache)
    assert probabilities.shape == (len(task.unlabeled), len(task.vocabulary))
    assert np.isfinite(probabilities).all()
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-4)
    for _, labels in context.history:
        assert set(labels.labels.tolist()) <= set(task.target_classes.tolist())
        assert labels.image_index.max(initial=0) < len(task.unlabeled)
    assert backbone.fingerprint() == before
    again, _ = adapt_toy(name, task, backbone, cache)
    assert again.tobytes() == probabilities.tobytes()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_survives_every_task(name: str, case: str, noise: Path, tmp_path: Path) -> None:
    check_toy(name, make(noise, **CASES[case]), ToyBackbone(), tmp_path)


@pytest.mark.parametrize("name", METHODS)
def test_a_class_that_nothing_fits_does_no_harm(name: str, noise: Path, tmp_path: Path) -> None:
    task = make(noise, 4)
    backbone = ShunnedClass(task.vocabulary.texts(2)[0])
    zero_shot, _ = adapt_toy("zero_shot", task, backbone, tmp_path)
    assert (zero_shot.argmax(axis=1) != 2).all()
    check_toy(name, task, backbone, tmp_path)
