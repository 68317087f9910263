"""Named models: a short name stands for an id, brings its template, and users can add their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from captune.core import registry
from captune.core.errors import CaptuneError, InputError
from captune.core.settings import OWN_MODELS as OWN
from captune.core.settings import full_id, named_models
from captune.plan import make_plan
from captune.world import write_world


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_world(folder, 1, seed=0)
    return folder


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "models.yaml"
    monkeypatch.setenv(OWN, str(path))
    return path


def test_every_model_has_an_id_that_a_source_takes_and_a_template_if_it_has_texts() -> None:
    for name, model in named_models().items():
        source, argument = registry.split_id("backbones", model.id, "")
        assert source in ("hf", "open_clip")
        assert argument
        assert ":" not in name
        assert model.template.count("{}") == ("dino" not in name)
        assert model.source.startswith("https://")
        assert model.license


def test_a_name_stands_for_the_id_and_brings_its_template(images: Path) -> None:
    plan = make_plan(images, ["a", "b"], None, {"backbone": "fashionclip", "second_encoder": "dinov2-small"})
    model = named_models()["fashionclip"]
    assert (plan.settings.backbone, plan.settings.template) == (model.id, model.template)
    assert plan.settings.second_encoder == full_id("dinov2-small") == "hf:facebook/dinov2-small"


def test_an_explicit_template_wins(images: Path) -> None:
    plan = make_plan(images, ["a", "b"], None, {"backbone": "siglip2-b-16", "template": "an image of {}"})
    assert plan.settings.template == "an image of {}"
    assert plan.task.vocabulary.templates == ("an image of {}",)
    named = make_plan(images, ["a", "b"], None, {"backbone": "siglip2-b-16"})
    assert named.task.vocabulary.templates == ("This is a photo of {}.",)


def test_users_add_and_replace_models(own_file: Path, images: Path) -> None:
    own_file.write_text("ours:\n  id: embedded:patterns\n  template: cloth, {}\nfashionclip:\n  id: hf:our/clip\n")
    assert list(named_models())[-1] == "ours"
    assert full_id("fashionclip") == "hf:our/clip"
    assert make_plan(images, ["a", "b"], None, {"backbone": "ours"}).settings.template == "cloth, {}"


@pytest.mark.parametrize("text", ["ours: hf:a/b", "ours:\n  templat: x", "- a", "ours:\n  template: '{}'"])
def test_a_wrong_file_is_an_error(own_file: Path, text: str) -> None:
    own_file.write_text(text)
    with pytest.raises(InputError):
        named_models()


def test_a_missing_file_is_an_error(own_file: Path) -> None:
    with pytest.raises(CaptuneError, match=own_file.name):
        named_models()


def test_ids_are_left_as_they_are() -> None:
    assert full_id("hf:openai/clip-vit-base-patch32") == "hf:openai/clip-vit-base-patch32"
    assert full_id("no-such-name") == "no-such-name"
