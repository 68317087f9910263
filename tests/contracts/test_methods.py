"""What every method keeps, whoever wrote it: seeds, frozen weights, all classes, no harm from odd images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captune
from captune import registry
from captune.errors import InputError
from captune.settings import RunSettings, build, explain
from toys import write_images

METHODS = registry.names("methods")
QUICK: dict[str, Any] = {"rounds": 1, "epochs": 1, "warmup_epochs": 0, "shots": 2, "per_class": 2}
"""Values that make a method short, where it has such a setting."""


def quick(name: str) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(registry.load("methods", name).Settings)}
    return {key: value for key, value in QUICK.items() if key in known}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_images(tmp_path_factory.mktemp("photos"), 8, side=36)
    (folder / "bad.jpg").write_bytes(b"not an image")
    return folder


def adapt(name: str, photos: Path, clip: Path, cache: Path, **changes: Any) -> captune.pipeline.AdaptationRun:
    common = {"backbone": f"hf:{clip}", "workers": 0, "quiet": True, "cache": str(cache), "batch_size": 4}
    return captune.adapt(photos, ["cat", "dog", "bird"], method=name, **{**common, **quick(name), **changes})


@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_its_promises(name: str, photos: Path, clip_folder: Path, tmp_path: Path) -> None:
    run = adapt(name, photos, clip_folder, tmp_path / "cache", out=tmp_path / "run")
    probabilities = run.predictions.probabilities
    assert probabilities.shape == (8, 3)
    assert np.isfinite(probabilities).all()
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-4)
    assert list(run.set_aside.values()) == ["not an image of a known format"]
    from captune.backbones.hf import HuggingFace

    frozen = HuggingFace.load(str(clip_folder))
    assert run.classifier.backbone.fingerprint() == frozen.fingerprint()  # not one bit of the weights moved
    loaded = captune.load(tmp_path / "run")
    paths = [run.images.paths[i] for i in run.predictions.image_index]
    assert np.allclose(loaded.predict_proba(paths), probabilities, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_result(name: str, photos: Path, clip_folder: Path, tmp_path: Path) -> None:
    first = adapt(name, photos, clip_folder, tmp_path / "1", seed=7)
    second = adapt(name, photos, clip_folder, tmp_path / "2", seed=7)
    assert first.predictions.probabilities.tobytes() == second.predictions.probabilities.tobytes()


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
