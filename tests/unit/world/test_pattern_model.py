"""The committed model: its format, and the facts that the demo and the tests of the methods build on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.nn import functional
from transformers import AutoTokenizer, CLIPModel, CLIPTokenizer

import captune.backbones.embedded
from captune.world import WORLD_KINDS, class_names, descriptions_path, render_world
from captune.world.patterns import MISMATCHED, WELL_NAMED

FOLDER = Path(captune.backbones.embedded.__file__).parent / "patterns"
PER_CLASS = 24


@pytest.fixture(scope="module")
def model() -> CLIPModel:
    return CLIPModel.from_pretrained(FOLDER, dtype=torch.float32, local_files_only=True).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


@torch.no_grad()
def embed_texts(model: CLIPModel, tokenizer: Any, texts: list[str]) -> np.ndarray[Any, Any]:
    pooled = model.text_model(**tokenizer(texts, padding=True, return_tensors="pt")).pooler_output
    return functional.normalize(model.text_projection(pooled), dim=-1).numpy()


@torch.no_grad()
def embed_world(model: CLIPModel, split: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    photos = render_world(PER_CLASS, seed=2, split=split)
    pixels = (torch.from_numpy(photos.images).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
    pooled = model.vision_model(pixels).pooler_output
    return functional.normalize(model.visual_projection(pooled), dim=-1).numpy(), photos.labels


@pytest.fixture(scope="module")
def seen(model: CLIPModel) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return embed_world(model, "test")


@pytest.fixture(scope="module")
def named(model: CLIPModel, tokenizer: Any) -> np.ndarray[Any, Any]:
    return embed_texts(model, tokenizer, [f"a photo of a {name}" for name in class_names()])


def test_the_folder_is_small_and_carries_clips_scale(model: CLIPModel) -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 12e6
    assert model.config.text_config.num_hidden_layers >= 8
    assert model.config.vision_config.num_hidden_layers >= 8
    assert model.logit_scale.exp().item() == pytest.approx(100.0, abs=0.01)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_the_tokenizer_spells_any_string_and_marks_its_end(model: CLIPModel, tokenizer: Any) -> None:
    end = model.config.text_config.eos_token_id
    assert end == tokenizer.eos_token_id == tokenizer.pad_token_id != 2
    assert tokenizer.bos_token_id == model.config.text_config.bos_token_id
    ids = tokenizer("Zürich 2024: ∂x — 日本 🎽 gingham!").input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] == end
    assert end not in ids[1:-1]
    assert (
        CLIPTokenizer.from_pretrained(FOLDER)("a photo of a gingham").input_ids
        == tokenizer("a photo of a gingham").input_ids
    )
    assert max(ids) < model.config.text_config.vocab_size


def test_names_find_the_well_named_and_miss_the_mismatched(
    seen: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], named: np.ndarray[Any, Any]
) -> None:
    images, labels = seen
    right = (images @ named.T).argmax(axis=1) == labels
    by_class = np.array([right[labels == class_id].mean() for class_id in range(24)])
    assert 0.35 <= right.mean() <= 0.65
    assert (by_class < 0.1).sum() >= 4
    kinds = np.array([WORLD_KINDS[name] for name in class_names()])
    assert by_class[kinds == WELL_NAMED].mean() > 0.75
    assert by_class[kinds == MISMATCHED].mean() < 0.1


def test_images_of_every_class_cluster(
    model: CLIPModel, seen: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
) -> None:
    images, labels = seen
    train, train_labels = embed_world(model, "train")
    means = np.stack([train[train_labels == class_id].mean(axis=0) for class_id in range(24)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    assert ((images @ means.T).argmax(axis=1) == labels).mean() >= 0.85


@pytest.mark.parametrize("name", [name for name, kind in WORLD_KINDS.items() if kind == MISMATCHED])
def test_descriptions_find_what_the_name_misses(
    name: str,
    model: CLIPModel,
    tokenizer: Any,
    seen: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
    named: np.ndarray[Any, Any],
) -> None:
    images, labels = seen
    class_id = class_names().index(name)
    described = embed_texts(model, tokenizer, yaml.safe_load(descriptions_path().read_text())[name])

    def precision(text: np.ndarray[Any, Any]) -> float:
        return float((labels[np.argsort(-(images @ text))[:16]] == class_id).mean())

    assert precision(named[class_id]) < 0.2
    assert max(precision(text) for text in described) >= 0.6
