"""What every tuner keeps: unit embeddings of all classes, its own parameters only, the same answers after loading."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from captune.backbones.hf import HuggingFace
from captune.core import registry
from captune.core.settings import explain
from captune.data.vocabulary import Vocabulary
from captune.results.classifier import Classifier
from captune.tuners.base import Tuner

TUNERS = registry.names("tuners")
VOCABULARY = Vocabulary(("cat", "dog", "red car")).with_descriptions({1: ["a striped dog", "the dog"]})


@pytest.fixture(scope="module")
def clip(clip_folder: Path) -> HuggingFace:
    return HuggingFace.load(str(clip_folder))


@pytest.fixture(params=TUNERS)
def tuner(request: pytest.FixtureRequest, clip: HuggingFace) -> Tuner:
    torch.manual_seed(0)
    made: Tuner = registry.load("tuners", request.param)(clip, VOCABULARY)
    return made.eval()


def pixels(n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_embeddings_have_length_one_and_all_classes(tuner: Tuner) -> None:
    with torch.no_grad():
        classes, images = tuner.class_embeddings(), tuner.image_embeddings(pixels())
    assert classes.shape == (3, tuner.backbone.embed_dim)
    assert images.shape == (2, tuner.backbone.embed_dim)
    for vectors in (classes, images):
        assert torch.allclose(vectors.norm(dim=-1), torch.ones(len(vectors)), atol=1e-4)


def test_only_its_own_parts_are_parameters(tuner: Tuner) -> None:
    frozen = {id(parameter) for module in tuner.backbone.modules() for parameter in module.parameters()}
    assert not frozen & {id(parameter) for parameter in tuner.parameters()}
    assert not any(parameter.requires_grad for m in tuner.backbone.modules() for parameter in m.parameters())
    assert not any(key.startswith("backbone") for key in tuner.state_dict())


def test_every_parameter_can_learn(tuner: Tuner) -> None:
    if not list(tuner.parameters()):
        return
    tuner.train()
    for parameter in tuner.parameters():
        if parameter.requires_grad:  # away from zero, where some gradients vanish by design
            torch.nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(2))
    logits = tuner.image_embeddings(pixels(4)) @ tuner.class_embeddings().T
    torch.nn.functional.cross_entropy(20 * logits, torch.tensor([0, 1, 2, 0])).backward()
    for name, parameter in tuner.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_images_that_are_not_edited_may_come_from_the_cache(tuner: Tuner, clip: HuggingFace) -> None:
    if tuner.edits_images:
        return
    with torch.no_grad():
        assert torch.allclose(tuner.refine(clip.encode_image(pixels())), tuner.image_embeddings(pixels()), atol=1e-5)


def test_a_saved_tuner_gives_the_same_answers(tuner: Tuner, clip: HuggingFace, tmp_path: Path) -> None:
    with torch.no_grad():
        for parameter in tuner.parameters():
            parameter.add_(0.01)  # as after a training, so that a fresh tuner would answer differently
    classifier = Classifier.from_tuner(tuner)
    classifier.save(tmp_path)
    loaded = Classifier.load(tmp_path, clip)
    views = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    assert np.array_equal(loaded.score_views(views), classifier.score_views(views))


def test_settings_are_frozen_and_explained(tuner: Tuner) -> None:
    settings = type(tuner).Settings
    assert settings.__dataclass_params__.frozen
    assert set(explain(settings)) == {field.name for field in dataclasses.fields(settings)}
