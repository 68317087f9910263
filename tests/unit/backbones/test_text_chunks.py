"""Many classes: texts are encoded in chunks, with the same embeddings, gradients and losses in less memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import NAMES, adapt
from torch import Tensor
from toys import write_classes

from captune.backbones.base import Backbone
from captune.backbones.hf import HuggingFace
from captune.data.vocabulary import Vocabulary
from captune.tuners import _prompted_texts
from captune.tuners.maple import Maple


def learn(clip: HuggingFace, chunk: int, n_classes: int = 50) -> tuple[Tensor, dict[str, Tensor], int]:
    """Return class embeddings, gradients and the bytes that the forward pass keeps for the backward pass."""
    clip.texts_at_once = chunk
    torch.manual_seed(0)
    tuner = Maple(clip, Vocabulary(tuple(f"cat {i}" for i in range(n_classes))))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        classes = tuner.class_embeddings()
    target = torch.randn(classes.shape, generator=torch.Generator().manual_seed(1))
    (classes * target).sum().backward()
    gradients = {name: value.grad for name, value in tuner.named_parameters() if value.grad is not None}
    return classes.detach(), gradients, sum(kept.values())


@pytest.mark.parametrize("chunk", [1, 7, 49])
def test_chunks_change_neither_embeddings_nor_gradients(clip_folder: Path, chunk: int) -> None:
    clip = HuggingFace.load(str(clip_folder))
    whole, part = learn(clip, 1000), learn(clip, chunk)
    assert torch.allclose(whole[0], part[0], atol=1e-6)
    assert whole[1].keys() == part[1].keys() != set()
    for name, gradient in whole[1].items():
        assert torch.allclose(gradient, part[1][name], rtol=1e-4, atol=1e-5), name


def test_chunks_keep_a_tenth_of_the_memory(clip_folder: Path) -> None:
    clip = HuggingFace.load(str(clip_folder))
    weights = sum(p.numel() * 4 for module in clip.modules() for p in module.parameters())
    whole, part = learn(clip, 1000, 200)[2], learn(clip, 10, 200)[2]
    assert whole > 5 * weights  # so that activations are what is measured
    assert part < 0.1 * whole


def test_without_gradients_nothing_is_computed_twice(clip_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = HuggingFace.load(str(clip_folder))
    seen: list[int] = []
    features = HuggingFace.text_features
    monkeypatch.setattr(
        HuggingFace, "text_features", lambda self, tokens, edit=None: seen.append(len(tokens)) or features(self, tokens)
    )
    clip.texts_at_once = 4
    with torch.inference_mode():
        clip.encode_text(clip.tokenize(["cat"] * 10))
    assert seen == [4, 4, 2]


@pytest.mark.parametrize("kind", ["clip", "dual_dinov2", "siglip"])
def test_texts_of_similar_length_are_read_together_as_if_each_were_alone(
    backbone_of: Callable[[str], Backbone], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    backbone = backbone_of(kind)
    monkeypatch.setattr(_prompted_texts, "SMALLEST_PART", 2)
    names = tuple("cat " * (1 + 5 * i % 7) + f"{i}" for i in range(12))
    torch.manual_seed(0)
    tuner = Maple(backbone, Vocabulary(names))
    lengths = [int(part.ids.shape[1]) for part in tuner.texts.parts]
    assert lengths == sorted(set(lengths))
    assert len(lengths) == 1 if kind == "siglip" else len(lengths) > 3  # SigLIP reads its padding
    found, own = tuner.class_embeddings(), dict(tuner.named_parameters())
    for i, name in enumerate(names):
        alone = Maple(backbone, Vocabulary((name, "dog")))
        alone.load_state_dict(own)
        assert torch.allclose(found[i], alone.class_embeddings()[0], atol=1e-6), name


def test_few_texts_stay_together_in_their_order(clip_folder: Path) -> None:
    clip = HuggingFace.load(str(clip_folder))
    texts = Maple(clip, Vocabulary(tuple("cat " * (30 - i) for i in range(25)))).texts
    assert len(texts.parts) == 1
    assert texts.order.tolist() == list(range(25))


@pytest.mark.parametrize("preset", ["full"])
def test_a_run_in_chunks_has_the_same_losses(tmp_path: Path, clip_folder: Path, preset: str) -> None:
    photos = write_classes(tmp_path / "photos", NAMES, 4)
    runs: list[Any] = [adapt(photos, f"hf:{clip_folder}", preset, tau=0.3, class_chunk=chunk) for chunk in (1024, 2)]
    losses = [[facts["loss"] for facts in run.rounds if facts["step"] == "epoch"] for run in runs]
    assert np.allclose(losses[0], losses[1], rtol=1e-4)  # four epochs pass rounding errors on
    assert runs[0].predictions.labels.tolist() == runs[1].predictions.labels.tolist()
