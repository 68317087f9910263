"""The students: what is trained, how they start, and that prompts stand where they should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from models import identifier

from captune.backbones.base import load_backbone
from captune.core.arrays import unit_rows
from captune.data.vocabulary import Vocabulary
from captune.embeddings.embed import embed_classes
from captune.mixture.gaussian_mixture import fit_gaussian_mixture
from captune.results.classifier import Classifier
from captune.tuners.feature_adapter import FeatureAdapter, ResidualAdapter
from captune.tuners.maple import Maple, MapleSettings
from captune.tuners.text_prompts import TextPrompts, TextPromptsSettings

NAMES = Vocabulary(("cat", "red dog", "striped bird"))
KINDS = ["clip", "siglip", "dual_dinov2", "dual_vit"]


@pytest.mark.parametrize("kind", KINDS)
def test_maple_trains_prompts_only(kind: str, model_folder: Callable[[str], Path]) -> None:
    backbone = load_backbone(identifier(kind, model_folder(kind)))
    before = backbone.fingerprint()
    torch.manual_seed(0)
    maple = Maple(backbone, NAMES, MapleSettings(depth=2))
    deepest = Maple(backbone, NAMES).projections
    assert all(torch.equal(deepest[1].weight, other.weight) for other in deepest[2:])  # type: ignore[union-attr]
    assert not torch.equal(deepest[0].weight, deepest[1].weight)  # type: ignore[arg-type]
    pixels = torch.randn(2, 3, backbone.preprocessing.image_size, backbone.preprocessing.image_size)
    images, classes = maple.image_embeddings(pixels), maple.class_embeddings()
    assert images.shape == (2, backbone.embed_dim)
    assert classes.shape == (3, backbone.embed_dim)
    assert torch.allclose(images.norm(dim=-1), torch.ones(2), atol=1e-5)
    (images @ classes.T).pow(2).sum().backward()
    grads = {name: parameter.grad for name, parameter in maple.named_parameters()}
    assert all(grad is not None and grad.abs().sum() > 0 for grad in grads.values()), grads.keys()
    assert set(grads) == {f"prompts.{i}" for i in range(2)} | {
        f"projections.{i}.{part}" for i in range(2) for part in ("weight", "bias")
    }
    assert backbone.fingerprint() == before


def test_maple_starts_from_the_words_a_photo(clip_folder: Path) -> None:
    backbone = load_backbone(f"hf:{clip_folder}")
    maple = Maple(backbone, NAMES, MapleSettings(depth=1))
    plain = Vocabulary(NAMES.names, ("a photo of a {}.",))
    # With the first words' own embeddings in their places the prompted text is the plain text.
    assert torch.allclose(maple.class_embeddings(), torch.from_numpy(embed_classes(backbone, plain)), atol=1e-5)


def test_visual_prompts_are_projections_of_the_text_prompts(clip_folder: Path) -> None:
    backbone = load_backbone(f"hf:{clip_folder}")
    maple = Maple(backbone, NAMES, MapleSettings(n_prompts=3, depth=2))
    tokens = torch.zeros(1, 5, backbone.image_tower.width)
    entered = maple._edit_image(0, tokens)
    assert entered.shape[1] == 8
    assert torch.equal(entered[0, 5:], maple.projections[0](maple.prompts[0]))
    deeper = maple._edit_image(1, entered + 1)
    assert torch.equal(deeper[0, :5], entered[0, :5] + 1)
    assert torch.equal(deeper[0, 5:], maple.projections[1](maple.prompts[1]))
    assert torch.equal(maple._edit_image(2, deeper), deeper)


def test_more_layers_than_the_tower_has(clip_folder: Path) -> None:
    backbone = load_backbone(f"hf:{clip_folder}")
    assert Maple(backbone, NAMES, MapleSettings(depth=99)).depth == backbone.text_tower.depth


def test_descriptions_may_be_several_sentences(clip_folder: Path) -> None:
    backbone = load_backbone(f"hf:{clip_folder}")
    described = NAMES.with_descriptions({1: ("a red striped field", "the red car in a field")})
    classes = Maple(backbone, described).class_embeddings()
    assert classes.shape == (3, backbone.embed_dim)
    assert torch.allclose(classes.norm(dim=-1), torch.ones(3), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_context_stands_in_front_of_the_class_name(kind: str, model_folder: Callable[[str], Path]) -> None:
    backbone = load_backbone(identifier(kind, model_folder(kind)))
    student = TextPrompts(backbone, NAMES, TextPromptsSettings(n_context=2))
    # With the embeddings of two words as context, the prompted text is the text with these words.
    words = backbone.tokenize(["an a"]).ids[0, backbone.text_tower.prompt_start :][:2]
    with torch.no_grad():
        student.context[0].copy_(backbone.text_tower.words(words))
    without_stop = TextPrompts(backbone, NAMES, TextPromptsSettings(n_context=2, full_stop=False))
    with torch.no_grad():
        without_stop.context.copy_(student.context)
    for made, template in ((student, "an a {}."), (without_stop, "an a {}")):
        expected = torch.from_numpy(embed_classes(backbone, Vocabulary(NAMES.names, (template,))))
        assert torch.allclose(made.class_embeddings(), expected, atol=1e-5)
    assert not student.edits_images


@pytest.mark.parametrize("kind", KINDS)
def test_the_context_leaves_room_for_the_class_name(kind: str, model_folder: Callable[[str], Path]) -> None:
    backbone = load_backbone(identifier(kind, model_folder(kind)))
    torch.manual_seed(0)
    student = TextPrompts(backbone, NAMES)
    longest = backbone.tokenize(["a " * 1000]).ids.shape[1]
    assert student.context.shape == (1, min(16, longest // 2), backbone.text_tower.width)
    assert 0.015 < student.context.std() < 0.025
    classes = student.class_embeddings()
    assert (classes @ classes.T).fill_diagonal_(0).max() < 0.9999  # names were not cut off: the classes differ


def test_members_are_averaged(clip_folder: Path) -> None:
    backbone = load_backbone(f"hf:{clip_folder}")
    torch.manual_seed(0)
    members = [TextPrompts(backbone, NAMES, TextPromptsSettings(n_context=4)) for _ in range(3)]
    whole = TextPrompts.joined(backbone, NAMES, torch.cat([member.context for member in members]))
    mean = torch.stack([member.class_embeddings() for member in members]).mean(0)
    expected = torch.nn.functional.normalize(mean, dim=-1)
    assert torch.allclose(whole.class_embeddings(), expected, atol=1e-6)


def test_the_feature_adapter_starts_as_the_backbone(clip_folder: Path) -> None:
    backbone = load_backbone(f"hf:{clip_folder}")
    student = FeatureAdapter(backbone, NAMES)
    embeddings = torch.nn.functional.normalize(torch.randn(4, backbone.embed_dim), dim=-1)
    assert torch.allclose(student.refine(embeddings), embeddings, atol=1e-6)
    assert torch.allclose(student.class_embeddings(), torch.from_numpy(embed_classes(backbone, NAMES)), atol=1e-6)
    assert not student.edits_images


def test_a_student_may_start_as_a_mixture_and_is_calibrated(clip_folder: Path, tmp_path: Path) -> None:
    backbone = load_backbone(f"hf:{clip_folder}")
    generator = np.random.default_rng(0)
    images = unit_rows(generator.normal(size=(40, backbone.embed_dim)).astype(np.float32))
    fit = fit_gaussian_mixture(images, embed_classes(backbone, NAMES), backbone.logit_scale)
    student = FeatureAdapter(backbone, NAMES).with_mixture(fit)
    assert np.allclose(Classifier.from_tuner(student).score_embeddings(images), fit.probabilities, atol=1e-4)
    with torch.no_grad():
        student.class_vectors += 0.1
    student.calibrate(images, 0.6)
    moved = Classifier.from_tuner(student)
    found = moved.score_embeddings(images)
    assert not np.allclose(found, fit.probabilities, atol=1e-2)
    assert np.isclose(found.max(axis=1).mean(), 0.6, atol=1e-3)
    moved.save(tmp_path)
    assert np.array_equal(Classifier.load(tmp_path).score_embeddings(images), found)


def test_a_training_adapter_is_a_small_residual() -> None:
    torch.manual_seed(0)
    adapter = ResidualAdapter(16, width=4, strength=0.01)
    rows = torch.nn.functional.normalize(torch.randn(5, 16), dim=-1)
    inner = adapter.up(torch.relu(adapter.down(rows)))
    expected = torch.nn.functional.normalize(rows + 0.01 * inner, dim=-1)
    assert torch.allclose(adapter(rows), expected)
    assert (adapter(rows) * rows).sum(-1).min() > 0.999
