"""Prompts in the towers: what an edit may do, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import pytest
import torch
from models import LAYERS, MAKERS, SIDE, WIDTH
from torch import Tensor

from captune.backbones.base import Backbone, Edit

Backbones = Callable[[str], Backbone]
KINDS = list(MAKERS)
TEXTS = ["a photo of a cat", "a striped bird in the field"]
SIDES = ["image", "text"]


def run(backbone: Backbone, side: str, edit: Edit | None) -> Tensor:
    if side == "text":
        return backbone.text_features(backbone.tokenize(TEXTS), edit)
    return backbone.image_features(torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(3)), edit)


def prompts(seed: int = 0) -> Tensor:
    return torch.randn(2, 2, WIDTH, generator=torch.Generator().manual_seed(seed))


def append(tokens: Tensor, more: Tensor) -> Tensor:
    return torch.cat([tokens, more], dim=1)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_identity_edit_changes_nothing(kind: str, side: str, backbone_of: Backbones) -> None:
    depths: list[int] = []

    def edit(depth: int, tokens: Tensor) -> Tensor:
        depths.append(depth)
        return tokens

    backbone = backbone_of(kind)
    assert torch.equal(run(backbone, side, edit), run(backbone, side, None))
    assert depths == list(range(LAYERS))


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_appended_and_removed_leave_the_other_tokens_in_place(kind: str, backbone_of: Backbones) -> None:
    backbone = backbone_of(kind)
    lengths: list[int] = []

    def add_then_remove(depth: int, tokens: Tensor) -> Tensor:
        lengths.append(int(tokens.shape[1]))
        if depth == 0:
            return append(tokens, prompts())
        return tokens[:, :-2] if depth == 1 else tokens

    edited, plain = run(backbone, "image", add_then_remove), run(backbone, "image", None)
    assert lengths == [lengths[0], lengths[0] + 2, lengths[0]]
    assert edited.shape == plain.shape
    assert (edited - plain).abs().max() > 1e-4  # the first layer saw the prompts
    nothing_seen = run(backbone, "image", lambda depth, t: append(t, prompts())[:, : t.shape[1]])
    torch.testing.assert_close(nothing_seen, plain, atol=1e-6, rtol=0)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_replaced_at_each_depth_as_maple_does(kind: str, side: str, backbone_of: Backbones) -> None:
    backbone = backbone_of(kind)
    start = backbone.text_tower.prompt_start

    def edit(depth: int, tokens: Tensor) -> Tensor:
        own = prompts(depth)
        if side == "image":
            return append(tokens if depth == 0 else tokens[:, :-2], own)
        return torch.cat([tokens[:, :start], own, tokens[:, start + 2 :]], dim=1)

    edited = run(backbone, side, edit)
    assert torch.isfinite(edited).all()
    assert (edited - run(backbone, side, None)).abs().max() > 1e-4
    # Only what is given at the last depth enters the last layer: other prompts there change the feature.
    other = run(backbone, side, lambda d, t: edit(d, t) if d < LAYERS - 1 else edit(7, t))
    assert (edited - other).abs().max() > 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_words_replaced_by_their_own_embeddings_change_nothing(kind: str, backbone_of: Backbones) -> None:
    backbone = backbone_of(kind)
    tower, tokens = backbone.text_tower, backbone.tokenize(TEXTS)
    start = tower.prompt_start
    words = tower.words(tokens.ids[:, start : start + 2]) + tower.positions()[start : start + 2]

    def edit(depth: int, states: Tensor) -> Tensor:
        return torch.cat([states[:, :start], words, states[:, start + 2 :]], dim=1) if depth == 0 else states

    torch.testing.assert_close(backbone.text_features(tokens, edit), backbone.text_features(tokens), atol=1e-6, rtol=0)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_depth_zero_comes_before_the_entry_norm(kind: str, side: str, backbone_of: Backbones) -> None:
    backbone = backbone_of(kind)
    tower = backbone.text_tower if side == "text" else backbone.image_tower
    has_norm = (side == "image" and kind.startswith("clip")) or (side == "text" and kind.startswith("dual"))
    assert isinstance(tower.entries[0], torch.nn.LayerNorm) is has_norm


def test_an_edit_is_seen_by_its_own_thread_only_and_leaves_no_hook(backbone_of: Backbones) -> None:
    backbone = backbone_of("clip")
    plain, elsewhere = run(backbone, "image", None), list[Tensor]()

    def edit(depth: int, tokens: Tensor) -> Tensor:
        other = Thread(target=lambda: elsewhere.append(run(backbone, "image", None)))
        other.start()
        other.join()
        return tokens + 1

    assert not torch.equal(run(backbone, "image", edit), plain)
    assert len(elsewhere) == LAYERS
    assert all(torch.equal(found, plain) for found in elsewhere)
    assert torch.equal(run(backbone, "image", None), plain)
    assert not any(module._forward_pre_hooks for module in backbone.image_tower.entries)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_the_prompts_and_no_weight(kind: str, side: str, backbone_of: Backbones) -> None:
    backbone = backbone_of(kind)
    before, prompt = backbone.fingerprint(), prompts().requires_grad_()
    start = backbone.text_tower.prompt_start

    def edit(depth: int, tokens: Tensor) -> Tensor:
        if depth > 0:
            return tokens
        if side == "image":
            return append(tokens, prompt)
        return torch.cat([tokens[:, :start], prompt, tokens[:, start + 2 :]], dim=1)

    run(backbone, side, edit).square().sum().backward()
    assert prompt.grad is not None
    assert prompt.grad.abs().sum(dim=-1).min() > 0  # every prompt of every text or image
    assert all(parameter.grad is None for module in backbone.modules() for parameter in module.parameters())
    assert backbone.fingerprint() == before
