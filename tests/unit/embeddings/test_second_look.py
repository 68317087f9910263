"""A second look: files that have not changed are not read, texts and views are not encoded, weights are not loaded."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import ToyBackbone, write_images

import captune
from captune.backbones.base import load_backbone
from captune.core import runtime
from captune.core.errors import ModelError
from captune.data.images import ImageCollection, find_images
from captune.data.views import StrongView
from captune.data.vocabulary import Vocabulary
from captune.embeddings import cache as stamps
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import EmbeddedImages, classes_read_alike, embed_classes, embed_images, embed_texts
from captune.embeddings.lazy_backbone import LazyBackbone, is_remembered, open_backbone


@pytest.fixture
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust files at once; tests do not wait."""
    monkeypatch.setattr(stamps, "SECONDS_UNTIL_SETTLED", 0.0)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos", 10)


@pytest.fixture
def embed(tmp_path: Path) -> Callable[..., EmbeddedImages]:
    def call(backbone: ToyBackbone, images: ImageCollection | Path, strong: StrongView | None = None) -> EmbeddedImages:
        engine = runtime.start(workers=0, quiet=True)
        found = find_images(images) if isinstance(images, Path) else images
        return embed_images(backbone, found, EmbeddingCache(tmp_path / "cache"), engine, 4, strong)

    return call


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that are read."""
    names: list[str] = []
    read = ImageCollection.read

    def counted(images: ImageCollection, position: int) -> object:
        names.append(images.name(position))
        return read(images, position)

    monkeypatch.setattr(ImageCollection, "read", counted)
    return names


@pytest.mark.usefixtures("_settled")
def test_unchanged_files_are_not_read_again(photos: Path, embed: Callable[..., EmbeddedImages], reads: list) -> None:
    first = embed(ToyBackbone(), photos)
    assert len(reads) == 10
    reads.clear()
    again = embed(ToyBackbone(), photos)
    assert reads == []
    assert np.array_equal(first.vectors, again.vectors)
    embed(ToyBackbone(seed=1), photos)  # other weights need the pixels
    assert len(reads) == 10
    reads.clear()
    (photos / "003.png").unlink()
    (photos / "010.png").write_bytes(b"no image")
    again = embed(ToyBackbone(), photos)
    assert reads == ["010.png"]
    assert list(again.skipped) == [9]
    assert np.array_equal(again.vectors, np.delete(first.vectors, 3, axis=0))


@pytest.mark.usefixtures("_settled")
def test_a_change_that_hides_itself_is_noticed(photos: Path, embed: Callable[..., EmbeddedImages], reads: list) -> None:
    """Same name, size and modification time, other content, written in place or moved over the old file."""
    before = embed(ToyBackbone(), photos)
    for number, source in ((0, photos / "001.png"), (2, photos / "003.png")):
        target = photos / f"{number:03d}.png"
        facts, content = target.stat(), source.read_bytes()
        padded = content[: facts.st_size] + b"\0" * (facts.st_size - len(content))
        if number:
            (photos / "new").write_bytes(padded)
            (photos / "new").rename(target)
        else:
            target.write_bytes(padded)
        os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        assert (target.stat().st_size, target.stat().st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    reads.clear()
    after = embed(ToyBackbone(), photos)
    assert reads == ["000.png", "002.png"]
    assert not np.array_equal(before.vectors[[0, 2]], after.vectors[[0, 2]])


def test_files_of_the_last_seconds_are_read_again(
    photos: Path, embed: Callable[..., EmbeddedImages], reads: list
) -> None:
    embed(ToyBackbone(), photos)
    embed(ToyBackbone(), photos)
    assert len(reads) == 20


@pytest.mark.usefixtures("_settled")
def test_members_of_a_shard_have_stamps_of_their_own(tmp_path: Path, photos: Path) -> None:
    shutil.make_archive(str(tmp_path / "all"), "tar", photos)
    found = stamps.stamp_images(find_images(tmp_path / "all.tar"))
    assert found is not None
    assert len({stamp.tobytes() for stamp in found}) == 10
    os.utime(tmp_path / "all.tar")
    changed = stamps.stamp_images(find_images(tmp_path / "all.tar"))
    assert changed is not None
    assert not (changed == found).all(axis=1).any()


def test_strong_views_of_another_collection_or_order_are_not_encoded_again(
    photos: Path, embed: Callable[..., EmbeddedImages]
) -> None:
    images, view = find_images(photos), StrongView(ToyBackbone().preprocessing, 1)
    first = embed(ToyBackbone(), images, view)
    backbone = ToyBackbone()
    order = np.array([7, 2, 3, 9])  # some have labels now, one is gone
    again = embed(backbone, images.subset(order), view)
    assert backbone.n_encoded == 0
    assert np.array_equal(again.vectors, first.vectors[order])
    embed(backbone, images, StrongView(backbone.preprocessing, 2))
    assert backbone.n_encoded == 10


@pytest.fixture
def model(clip_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(clip_folder, tmp_path / "model")


@pytest.mark.usefixtures("_settled")
def test_a_known_model_is_loaded_when_it_is_needed(model: Path, tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path / "cache")
    assert not is_remembered(f"hf:{model}", cache)
    first = open_backbone(f"hf:{model}", cache)
    vocabulary = Vocabulary(("cat", "dog"))
    texts = embed_classes(first, vocabulary)
    assert is_remembered(f"hf:{model}", cache)
    known, real = open_backbone(f"hf:{model}", cache), load_backbone(f"hf:{model}")
    assert isinstance(known, LazyBackbone)
    assert np.array_equal(embed_classes(known, vocabulary), texts)
    assert known.fingerprint() == real.fingerprint()
    for name in ("identifier", "embed_dim", "logit_scale", "preprocessing"):
        assert getattr(known, name) == getattr(real, name)
    assert "loaded" not in vars(known.to(torch.device("cpu")))
    assert np.array_equal(embed_texts(known, ["a fox"]), embed_texts(real, ["a fox"]))
    assert "loaded" in vars(known)
    pixels = torch.zeros(1, 3, known.preprocessing.image_size, known.preprocessing.image_size)
    assert torch.equal(known.encode_image(pixels), real.encode_image(pixels))
    assert known.longest_text == real.longest_text  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_settled")
def test_damaged_facts_about_a_model_are_collected_again(model: Path, tmp_path: Path) -> None:
    cache, identifier = EmbeddingCache(tmp_path / "cache"), f"hf:{model}"
    real = open_backbone(identifier, cache).fingerprint()
    (card,) = (tmp_path / "cache" / "backbones").iterdir()
    content = card.read_text()
    for damaged in (content.replace(real, real[::-1]), content[:20], "[]", '{"facts": 1, "digest": 2}'):
        card.write_text(damaged)
        assert not is_remembered(identifier, cache)
        assert open_backbone(identifier, cache).fingerprint() == real
        assert card.read_text() == content


@pytest.mark.usefixtures("_settled")
def test_changed_weights_or_tokenizers_are_another_model(model: Path, tmp_path: Path) -> None:
    cache, identifier = EmbeddingCache(tmp_path / "cache"), f"hf:{model}"
    before = open_backbone(identifier, cache)
    texts = embed_texts(before, ["a cat", "a dog"])
    known = open_backbone(identifier, cache)
    weights = bytearray((model / "model.safetensors").read_bytes())
    facts = (model / "model.safetensors").stat()
    weights[-3] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    os.utime(model / "model.safetensors", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert not is_remembered(identifier, cache)
    with pytest.raises(ModelError, match="changed while"):
        embed_texts(known, ["something new"])
    after = open_backbone(identifier, cache)
    assert after.fingerprint() != before.fingerprint()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "note": 1}))
    assert not is_remembered(identifier, cache)
    assert texts.shape == embed_texts(open_backbone(identifier, cache), ["a cat", "a dog"]).shape


@pytest.mark.usefixtures("_settled")
@pytest.mark.parametrize("kind", ["clip", "dual_dinov2"])
@pytest.mark.parametrize("method", ["transductive", "cap"])
def test_a_run_from_the_cache_loads_no_weights(
    model_folder: Callable[[str], Path],
    kind: str,
    method: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from captune.backbones import dual, hf

    folder = shutil.copytree(model_folder(kind), tmp_path / "copied")
    settings: dict[str, Any] = {"backbone": f"{'hf' if kind == 'clip' else 'dual'}:{folder}", "method": method}
    if method == "cap":
        settings |= {"preset": "quick", "epochs": 1, "iterations": 2, "keep_better": False}
    settings |= {"cache": str(tmp_path / "cache"), "quiet": True, "workers": 0}
    first = captune.adapt(photos, ["cat", "dog"], **settings)
    for module in (hf, dual):
        monkeypatch.setattr(module, "load_model", None)
        monkeypatch.setattr(module, "load_tokenizer", None)
    again = captune.adapt(photos, ["cat", "dog"], out=tmp_path / "run", **settings)
    assert np.array_equal(first.predictions.probabilities, again.predictions.probabilities)
    (photos / "000.png").unlink()
    labels = {"001.png": "cat", "002.png": "dog"}
    captune.adapt(photos, ["cat", "dog"], labels=labels, **{**settings, "seed": 5})
    monkeypatch.undo()
    assert captune.load(tmp_path / "run").predict(photos) == again.classifier.predict(photos)  # loaded after all


@pytest.mark.usefixtures("_settled")
def test_training_with_other_labels_and_seeds_encodes_nothing_again(
    model_folder: Callable[[str], Path], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(model_folder("clip"), tmp_path / "copied")
    settings = {"backbone": f"hf:{folder}", "method": "cap", "preset": "quick", "epochs": 1, "iterations": 2}
    settings |= {"keep_better": False}
    settings |= {"cache": str(tmp_path / "cache"), "quiet": True, "workers": 0}
    captune.adapt(photos, ["cat", "dog"], **settings)
    monkeypatch.setattr("captune.embeddings.embed.load_batches", _no_batches)
    (photos / "000.png").unlink()
    captune.adapt(photos, ["cat", "dog"], labels={"001.png": "cat", "002.png": "dog"}, seed=5, **settings)


@pytest.mark.usefixtures("_settled")
@pytest.mark.parametrize("kind", ["clip", "dual_dinov2"])
def test_weights_that_a_prediction_loads_can_be_trained_through(
    model_folder: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    folder, cache = shutil.copytree(model_folder(kind), tmp_path / "copied"), EmbeddingCache(tmp_path / "cache")
    identifier = f"{'hf' if kind == 'clip' else 'dual'}:{folder}"
    open_backbone(identifier, cache)
    known = open_backbone(identifier, cache)
    pixels = torch.zeros(1, 3, known.preprocessing.image_size, known.preprocessing.image_size)
    with torch.inference_mode():
        known.encode_image(pixels)
    assert "loaded" in vars(known)
    pixels.requires_grad_()
    known.encode_image(pixels)[0, 0].backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().sum() > 0


def _no_batches(images: object, batches: list, *arguments: object) -> list:
    assert batches == [], "images were read again"
    return []


@pytest.mark.usefixtures("_settled")
def test_classes_that_are_read_alike_are_found_without_weights(clip_folder: Path, tmp_path: Path) -> None:
    long, cache = "a " * 95, EmbeddingCache(tmp_path / "cache")
    vocabulary = Vocabulary((f"{long} dog", f"{long} bird", "car", "tree"))
    second = {0: (long, "a red car"), 1: (long, "a tree in a field")}  # only the second sentences differ
    described = Vocabulary(("car", "tree"), descriptions=second)
    for is_cached in (False, True):
        backbone = open_backbone(f"hf:{clip_folder}", cache)
        assert isinstance(backbone, LazyBackbone)
        assert classes_read_alike(backbone, vocabulary) == [vocabulary.names[:2]]
        assert classes_read_alike(backbone, described) == []
        assert ("loaded" in vars(backbone)) != is_cached
    assert classes_read_alike(load_backbone(f"hf:{clip_folder}"), described) == []
