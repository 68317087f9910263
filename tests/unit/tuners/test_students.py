"""The students: what is trained, how they start, and that prompts stand where they should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from captune.data.vocabulary import Vocabulary
from captune.plan import load_backbone
from captune.scoring import embed_classes
from captune.tuners.feature_adapter import FeatureAdapter, ResidualAdapter
from captune.tuners.maple import Maple, MapleSettings
from models import identifier

NAMES = Vocabulary(("cat", "red dog", "striped bird"))
KINDS = ["clip", "siglip", "dual_dinov2", "dual_vit"]


@pytest.mark.parametrize("kind", KINDS)
def test_maple_trains_prompts_only(kind: str, model_folder: Callable[[str], Path]) -> None:
    backbone = load_backbone(identifier(kind, model_folder(kind)))
    before = backbone.fingerprint()
    torch.manual_seed(0)
    maple = Maple(backbone, NAMES, MapleSettings(depth=2))
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


def test_the_feature_adapter_starts_as_the_backbone(clip_folder: Path) -> None:
    backbone = load_backbone(f"hf:{clip_folder}")
    student = FeatureAdapter(backbone, NAMES)
    embeddings = torch.nn.functional.normalize(torch.randn(4, backbone.embed_dim), dim=-1)
    assert torch.allclose(student.refine(embeddings), embeddings, atol=1e-6)
    assert torch.allclose(student.class_embeddings(), torch.from_numpy(embed_classes(backbone, NAMES)), atol=1e-6)
    assert not student.edits_images


def test_a_training_adapter_is_a_small_residual() -> None:
    torch.manual_seed(0)
    adapter = ResidualAdapter(16, width=4, strength=0.01)
    rows = torch.nn.functional.normalize(torch.randn(5, 16), dim=-1)
    inner = adapter.up(torch.relu(adapter.down(rows)))
    expected = torch.nn.functional.normalize(rows + 0.01 * inner, dim=-1)
    assert torch.allclose(adapter(rows), expected)
    assert (adapter(rows) * rows).sum(-1).min() > 0.999
