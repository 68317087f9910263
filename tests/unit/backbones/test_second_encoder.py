"""A second image encoder: the space it is joined to, the models it can be, what is saved, and how it is weighted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import IS_OLD, SIDE, tiny_image_model
from toys import ToyBackbone, write_classes

import captune
from captune.backbones.base import load_backbone
from captune.backbones.image import ImageModel, second_id
from captune.backbones.joined import Joined
from captune.core.arrays import unit_rows
from captune.core.errors import CaptuneError, InputError, ModelError
from captune.data.precomputed import ClassTexts, Embeddings
from captune.data.views import weak_view

NAMES = ["cat", "red dog", "bird"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("image models")

    def make(kind: str) -> Path:
        return root / kind if (root / kind).exists() else tiny_image_model(root / kind, kind)

    return make


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("photos"), NAMES, 20)


@pytest.mark.parametrize("kind", ["dinov2", "vit", "convnext", "dinov3_vit"])
def test_any_image_model_of_transformers(kind: str, folders: Callable[[str], Path]) -> None:
    from transformers import AutoModel

    if kind == "dinov3_vit" and IS_OLD:
        pytest.skip("this version of transformers has no DINOv3")
    folder = folders(kind)
    encoder = load_backbone(second_id(f"hf:{folder}"))
    assert isinstance(encoder, ImageModel)
    pixels = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    model = AutoModel.from_pretrained(folder).eval()
    options = {"interpolate_pos_encoding": True} if kind == "vit" else {}
    with torch.no_grad():
        states = model(pixels, **options)
    expected = states.last_hidden_state[:, 0] if kind != "convnext" else states.pooler_output
    torch.testing.assert_close(encoder.image_features(pixels), expected, atol=1e-5, rtol=0)
    assert encoder.embed_dim == expected.shape[1]
    with pytest.raises(ModelError, match="second_encoder"):
        encoder.tokenize(["a cat"])


def test_models_with_texts_keep_their_id(model_folder: Callable[[str], Path]) -> None:
    identifier = f"hf:{model_folder('siglip')}"
    assert second_id(identifier) == identifier


def test_texts_are_scored_in_the_first_space() -> None:
    first, second = ToyBackbone(), ToyBackbone(seed=1, mean=0.2)
    joined = Joined(first, second, 3.0)
    views = np.random.default_rng(0).integers(0, 256, (4, 16, 8, 3), dtype=np.uint8)
    pixels = joined.preprocessing.normalize(views)
    assert joined.preprocessing.parts[1] == second.preprocessing
    one, other = joined.preprocessing.split(pixels)
    torch.testing.assert_close(one, first.preprocessing.normalize(views[:, :8]))
    torch.testing.assert_close(other, second.preprocessing.normalize(views[:, 8:]))
    np.testing.assert_allclose(joined.preprocessing.standardize(views), pixels.numpy(), atol=1e-6)
    images, texts = joined.encode_image(pixels), joined.encode_text(joined.tokenize(NAMES))
    torch.testing.assert_close(images.norm(dim=1), torch.ones(4))
    expected = first.logit_scale * first.encode_image(one) @ first.encode_text(first.tokenize(NAMES)).T
    torch.testing.assert_close(joined.logit_scale * images @ texts.T, expected, atol=1e-4, rtol=1e-4)
    parts = first.encode_image(one), second.encode_image(other)
    angles = (parts[0] @ parts[0].T + 9 * parts[1] @ parts[1].T) / 10
    torch.testing.assert_close(images @ images.T, angles, atol=1e-5, rtol=0)


def run(photos: Path, clip_folder: Path, second: Any, tmp_path: Path, **settings: Any) -> captune.Run:
    settings = {"method": "transductive", "second_weight": 2.0, "keep_better": False, **settings}
    return captune.adapt(
        photos, NAMES, backbone=f"hf:{clip_folder}", second_encoder=second, out=tmp_path / "run", quiet=True, workers=0,
        cache=str(tmp_path / "cache"), **settings,
    )  # fmt: skip


def test_a_run_with_two_encoders_is_saved_loaded_and_exported(
    photos: Path, clip_folder: Path, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    second = f"hf:{folders('dinov2')}"
    made = run(photos, clip_folder, second, tmp_path)
    assert isinstance(made.classifier.backbone, Joined)
    card = json.loads((tmp_path / "run" / "classifier" / "classifier.json").read_text())
    assert card["backbone"].startswith("joined:2|hf:/")
    again = captune.load(tmp_path / "run")
    np.testing.assert_allclose(again.predict_proba(photos), made.predictions.probabilities, atol=1e-5)
    # Views of pixels, as the service uses them, give the same as cached embeddings.
    paths = sorted(photos.rglob("*.png"))
    from PIL import Image

    views = np.stack([weak_view(Image.open(path).convert("RGB"), again.preprocessing) for path in paths])
    np.testing.assert_allclose(again.score_views(views), again.predict_proba(paths), atol=1e-4)
    pytest.importorskip("onnxruntime")
    target = captune.export(tmp_path / "run", "onnx", tmp_path / "model.onnx", images=str(photos)).path
    np.testing.assert_allclose(captune.load(target).predict_proba(photos), again.predict_proba(photos), atol=1e-3)
    session = captune.open_session(tmp_path / "run")
    assert session.suggest(3)


def test_each_encoder_has_its_own_cache(
    photos: Path, clip_folder: Path, folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(photos, clip_folder, f"hf:{folders('dinov2')}", tmp_path, method="zero_shot")

    def fail(*arguments: object) -> None:
        raise AssertionError("encoded again")

    monkeypatch.setattr("captune.embeddings.embed.encode_pixels", fail)
    run(photos, clip_folder, f"hf:{folders('dinov2')}", tmp_path, overwrite=True)
    alone = run(photos, clip_folder, "", tmp_path, overwrite=True, method="zero_shot")
    both = run(photos, clip_folder, f"hf:{folders('dinov2')}", tmp_path, overwrite=True, method="zero_shot")
    np.testing.assert_allclose(alone.predictions.probabilities, both.predictions.probabilities, atol=1e-5)


@pytest.mark.parametrize("preset", ["quick", "full"])
def test_training_with_two_encoders(
    preset: str, photos: Path, clip_folder: Path, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    short = {"method": "cap", "preset": preset, "epochs": 1, "iterations": 1}
    made = run(photos, clip_folder, f"hf:{folders('dinov2')}", tmp_path, **short)
    again = captune.load(tmp_path / "run").predict_proba(photos)
    np.testing.assert_allclose(again, made.predictions.probabilities, atol=1e-4)


def test_a_model_in_memory(photos: Path, clip_folder: Path, folders: Callable[[str], Path], tmp_path: Path) -> None:
    from transformers import AutoModel
    from transformers.image_processing_base import ImageProcessingMixin

    settings, _ = ImageProcessingMixin.get_image_processor_dict(folders("dinov2"))

    class Processor:
        def to_dict(self) -> dict[str, Any]:
            return dict(settings)

    wrapped = captune.wrap_image_encoder(AutoModel.from_pretrained(folders("dinov2")), Processor())
    by_id = run(photos, clip_folder, f"hf:{folders('dinov2')}", tmp_path)
    in_memory = run(photos, clip_folder, wrapped, tmp_path, overwrite=True)
    np.testing.assert_array_equal(by_id.predictions.probabilities, in_memory.predictions.probabilities)
    with pytest.raises(CaptuneError, match="image model of transformers"):
        captune.wrap_image_encoder("dinov2", None)


def two_spaces(n_classes: int = 8, per_class: int = 40, noise: float = 3.0) -> tuple[Any, ...]:
    """Return a first space in which classes overlap, a second in which they do not, labels and texts."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(n_classes), per_class)
    centers, others = (unit_rows(generator.normal(size=(n_classes, width))) for width in (32, 24))
    first = unit_rows(centers[labels] + noise * generator.normal(size=(len(labels), 32)) / np.sqrt(32))
    second = unit_rows(others[labels] + 0.4 * generator.normal(size=(len(labels), 24)) / np.sqrt(24))
    return first.astype(np.float32), second.astype(np.float32), labels, centers.astype(np.float32)


def accuracy(run: captune.Run, labels: Any) -> float:
    return float(np.mean(run.predictions.labels == labels))


@pytest.mark.parametrize("suffix", ["", ".npz", ".parquet"])
def test_embeddings_of_two_encoders(suffix: str, tmp_path: Path) -> None:
    first, second, labels, texts = two_spaces()
    classes = ClassTexts(tuple("abcdefgh"), texts, 20.0)
    images: Any = Embeddings(first, second=second)
    if suffix == ".npz":
        np.savez(tmp_path / "two.npz", images=first, second=second)
        images = str(tmp_path / "two.npz")
    elif suffix == ".parquet":
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame({"embedding": list(first), "second": list(second)}).to_parquet(tmp_path / "two.parquet")
        images = str(tmp_path / "two.parquet")
    settings = {"method": "transductive", "quiet": True, "keep_better": False}
    alone = captune.adapt(Embeddings(first), classes, **settings)
    both = captune.adapt(images, classes, out=tmp_path / "run", **settings)
    assert accuracy(both, labels) > accuracy(alone, labels) + 0.1
    loaded = captune.load(tmp_path / "run")
    np.testing.assert_allclose(
        loaded.predict_proba(Embeddings(first, second=second)), both.predictions.probabilities, atol=1e-5
    )
    with pytest.raises(InputError, match="second"):
        loaded.predict_proba(Embeddings(first))


def test_a_second_encoder_that_sees_something_else_is_left_out() -> None:
    first, _, labels, texts = two_spaces(noise=1.0)
    generator = np.random.default_rng(1)
    cameras = unit_rows(generator.normal(size=(6, 24)))[generator.integers(6, size=len(labels))]
    unrelated = unit_rows(cameras + 0.2 * generator.normal(size=cameras.shape)).astype(np.float32)
    settings = {"method": "transductive", "quiet": True, "keep_better": False}
    classes = ClassTexts(tuple("abcdefgh"), texts, 20.0)
    alone = captune.adapt(Embeddings(first), classes, **settings)
    both = captune.adapt(Embeddings(first, second=unrelated), classes, **settings)
    assert not isinstance(both.classifier.backbone, Joined)
    np.testing.assert_array_equal(alone.predictions.probabilities, both.predictions.probabilities)
    forced = captune.adapt(Embeddings(first, second=unrelated), classes, second_weight=4.0, **settings)
    assert accuracy(forced, labels) < accuracy(alone, labels)


def test_wrong_second_encoders() -> None:
    first, second, _, texts = two_spaces()
    with pytest.raises(InputError, match="320 second embeddings"):
        Embeddings(first, second=second[:5])
    classes = ClassTexts(tuple("abcdefgh"), texts, 20.0)
    with pytest.raises(InputError, match="second="):
        captune.adapt(Embeddings(first), classes, second_encoder="hf:facebook/dinov2-small", quiet=True)
    with pytest.raises(InputError, match="wrap_image_encoder"):
        captune.adapt(Embeddings(first), classes, second_encoder=3, quiet=True)
    with pytest.raises(ModelError, match="joined:WEIGHT"):
        Joined.load("nothing")
