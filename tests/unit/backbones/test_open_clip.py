"""open_clip's models as backbones; these tests run where the optional library is installed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vision_folder import import_vision

from captune.backbones.base import load_backbone, wrap
from captune.core.errors import MissingExtraError, ModelError
from captune.plan import check_backbone

open_clip, REASON = import_vision("open_clip")
needs_open_clip = pytest.mark.skipif(open_clip is None, reason=REASON)
TEXTS = ["a photo of a cat", "", "a striped bird, in the field of red trees", "ünï 猫 " * 200]
VISION = {"image_size": 32, "layers": 3, "width": 64, "head_width": 32, "patch_size": 8}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "tiny-vit": {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": TEXT},
    "tiny-quick": {"embed_dim": 24, "quick_gelu": True, "vision_cfg": VISION, "text_cfg": TEXT},
    "tiny-average": {
        "embed_dim": 24,
        "vision_cfg": {**VISION, "pool_type": "avg", "final_ln_after_pool": True, "no_ln_pre": True},
        "text_cfg": {**TEXT, "pool_type": "eos", "eos_id": 49407},
    },
    "tiny-custom": {
        "embed_dim": 24,
        "custom_text": True,
        "vision_cfg": {**VISION, "ls_init_value": 0.3},
        "text_cfg": {**TEXT, "no_causal_mask": True, "pool_type": "last", "proj_bias": True},
    },
    "tiny-resnet": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 16, "head_width": 32, "patch_size": None},
        "text_cfg": TEXT,
    },
    "tiny-coca": {
        "embed_dim": 24,
        "custom_text": True,
        "vision_cfg": {**VISION, "attentional_pool": True, "attn_pooler_heads": 2},
        "text_cfg": {**TEXT, "embed_cls": True},
    },
}
BOTH = frozenset(("image", "text"))
CARRIED = dict.fromkeys(CONFIGS, BOTH) | {"tiny-resnet": frozenset(("text",)), "tiny-coca": frozenset()}
SEAMED = [name for name, sides in CARRIED.items() if sides == BOTH]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Register a tiny architecture, save random weights and return the name after `open_clip:`."""
    folder = tmp_path_factory.mktemp("open_clip")

    def make(name: str) -> str:
        weights = folder / f"{name}.safetensors"
        if not weights.exists():
            (folder / f"{name}.json").write_text(json.dumps(CONFIGS[name]))
            open_clip.add_model_config(folder / f"{name}.json")
            torch.manual_seed(0)
            model = open_clip.create_model(name)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            save_file({key: value.contiguous() for key, value in model.state_dict().items()}, weights)
        return f"{name}/{weights}"

    return make


def pair(name: str) -> tuple[Any, Any]:
    """Return our backbone and the library's own model with the same weights."""
    from captune.backbones.open_clip import OpenClip

    model_name, _, weights = name.partition("/")
    return OpenClip.load(name), open_clip.create_model(model_name, pretrained=weights).eval()


def images(count: int = 3) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@needs_open_clip
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_features_equal_open_clips_own(kind: str, saved: Callable[[str], str]) -> None:
    backbone, reference = pair(saved(kind))
    ids = open_clip.get_tokenizer(kind)(TEXTS)
    with torch.no_grad():
        torch.testing.assert_close(
            backbone.image_features(images()), reference.encode_image(images()), atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            backbone.text_features(backbone.tokenize(TEXTS)), reference.encode_text(ids), atol=1e-5, rtol=0
        )
        short = backbone.tokenize(TEXTS[:3])
        torch.testing.assert_close(backbone.text_features(short), reference.encode_text(ids[:3]), atol=1e-5, rtol=0)
    is_cut = kind not in ("tiny-custom", "tiny-coca")
    assert (short.ids.shape[1] < 77) is is_cut
    embeddings = backbone.encode_image(images(1))
    assert embeddings.shape == (1, 24) == (1, backbone.embed_dim)
    torch.testing.assert_close(embeddings.norm(dim=-1), torch.ones(1), atol=1e-5, rtol=0)
    assert backbone.logit_scale == pytest.approx(reference.logit_scale.exp().item())


@needs_open_clip
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_a_model_in_memory_is_the_model_on_disk(kind: str, saved: Callable[[str], str]) -> None:
    on_disk, model = pair(saved(kind))
    wrapped = wrap(model, open_clip.get_tokenizer(kind))
    assert wrapped.prompted_sides() == CARRIED[kind]
    assert (wrapped.embed_dim, wrapped.logit_scale) == (on_disk.embed_dim, on_disk.logit_scale)
    assert (wrapped.preprocessing, wrapped.fingerprint()) == (on_disk.preprocessing, on_disk.fingerprint())
    with torch.no_grad():
        torch.testing.assert_close(wrapped.encode_image(images()), on_disk.encode_image(images()))
        for backbone in (wrapped, on_disk):
            assert backbone.encode_text(backbone.tokenize(TEXTS)).shape == (len(TEXTS), 24)


@needs_open_clip
def test_a_folder_with_its_configuration_is_the_same_model(saved: Callable[[str], str], tmp_path: Path) -> None:
    """Models of a field, such as BioCLIP 2, are published so on the hub."""
    from captune.backbones.open_clip import OpenClip

    name = saved("tiny-quick")
    (tmp_path / "open_clip_model.safetensors").write_bytes(Path(name.partition("/")[2]).read_bytes())
    config = {"model_cfg": CONFIGS["tiny-quick"], "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    expected, found = OpenClip.load(name), OpenClip.load(f"local-dir:{tmp_path}")
    assert found.fingerprint() == expected.fingerprint()
    assert found.prompted_sides() == OpenClip.prompt_towers(f"local-dir:{tmp_path}") == BOTH
    assert found.preprocessing.mean == (0.5, 0.5, 0.5)
    assert found.portable_id() == f"open_clip:local-dir:{tmp_path.resolve()}"
    with torch.no_grad():
        torch.testing.assert_close(found.encode_image(images()), expected.encode_image(images()))
        for texts in (TEXTS, TEXTS[:3]):
            tokens = expected.tokenize(texts)
            torch.testing.assert_close(found.encode_text(found.tokenize(texts)), expected.encode_text(tokens))


@needs_open_clip
def test_a_folder_without_a_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"open_clip_config\.json"):
        check_backbone(f"open_clip:local-dir:{tmp_path}")


def test_a_model_that_only_resembles_open_clips_is_one_clear_error() -> None:
    class First(torch.nn.Module):
        """Like the model of CLIP's first release, which has no preprocessing."""

        visual, token_embedding = torch.nn.Identity(), torch.nn.Identity()

        def encode_text(self, ids: Tensor) -> Tensor:
            return ids

    with pytest.raises(ModelError, match="tokenizer"):
        wrap(First())
    with pytest.raises(ModelError, match=r"how its images are preprocessed.*open_clip\.create_model"):
        wrap(First(), str.split)


@needs_open_clip
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_prompt_towers_are_known_before_loading(kind: str, saved: Callable[[str], str]) -> None:
    from captune.backbones.open_clip import OpenClip

    name = saved(kind)
    assert OpenClip.prompt_towers(name) == CARRIED[kind]
    backbone = OpenClip.load(name)
    assert (backbone.image_tower.depth > 0, backbone.text_tower.depth > 0) == (
        "image" in CARRIED[kind],
        "text" in CARRIED[kind],
    )
    if "image" not in CARRIED[kind]:
        with pytest.raises(ModelError, match="prompts"):
            backbone.encode_image(images(1), lambda depth, tokens: tokens)


@needs_open_clip
@pytest.mark.parametrize("kind", SEAMED)
def test_edits(kind: str, saved: Callable[[str], str]) -> None:
    from captune.backbones.open_clip import OpenClip

    backbone = OpenClip.load(saved(kind))
    before, tokens = backbone.fingerprint(), backbone.tokenize(TEXTS[:2])
    plain_image, plain_text = backbone.image_features(images(2)), backbone.text_features(tokens)
    same: Callable[[int, Tensor], Tensor] = lambda depth, states: states  # noqa: E731
    assert torch.equal(backbone.image_features(images(2), same), plain_image)
    assert torch.equal(backbone.text_features(tokens, same), plain_text)

    tower, start = backbone.text_tower, backbone.text_tower.prompt_start
    words = tower.words(tokens.ids[:, start : start + 1]) + tower.positions()[start : start + 1]
    prompt = words.clone().requires_grad_()

    def replace(depth: int, states: Tensor) -> Tensor:
        return torch.cat([states[:, :start], prompt, states[:, start + 1 :]], dim=1) if depth == 0 else states

    edited = backbone.text_features(tokens, replace)
    torch.testing.assert_close(edited, plain_text, atol=1e-5, rtol=0)
    edited.square().sum().backward()
    assert prompt.grad is not None
    assert prompt.grad.abs().sum() > 0

    visual = torch.randn(2, 2, backbone.image_tower.width, requires_grad=True)
    lengths: list[int] = []

    def append(depth: int, states: Tensor) -> Tensor:
        lengths.append(int(states.shape[1]))
        return torch.cat([states if depth == 0 else states[:, :-2], visual], dim=1)

    changed = backbone.image_features(images(2), append)
    assert lengths == [17, 19, 19]
    assert (changed - plain_image).abs().max() > 1e-4
    changed.square().sum().backward()
    assert visual.grad is not None
    assert visual.grad.abs().sum() > 0
    assert all(p.grad is None and not p.requires_grad for m in backbone.modules() for p in m.parameters())
    assert backbone.fingerprint() == before


@needs_open_clip
def test_weak_view_is_the_librarys_preprocessing(saved: Callable[[str], str]) -> None:
    import numpy as np
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image

    from captune.data.views import weak_view

    backbone, reference = pair(saved("tiny-vit"))
    transform = image_transform_v2(PreprocessCfg(**reference.visual.preprocess_cfg), is_train=False)
    # torchvision rounds the corner of the crop where we (and transformers) truncate it, so other sizes may be shifted
    # by one pixel.
    for size in ((57, 41), (41, 58), (100, 33), (32, 32)):
        noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        image = Image.fromarray(noise)
        view = backbone.preprocessing.normalize(weak_view(image, backbone.preprocessing)[None])[0]
        torch.testing.assert_close(view, transform(image), atol=1e-5, rtol=0)


@needs_open_clip
def test_wrong_names(saved: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'ViT-B-23'.*'ViT-B-32'"):
        check_backbone("open_clip:ViT-B-23/openai")
    with pytest.raises(ModelError, match=r"'laion2b_s34b'.*'laion2b_s34b_b79k'"):
        check_backbone("open_clip:ViT-B-32/laion2b_s34b")
    with pytest.raises(ModelError, match=r"names no weights.*open_clip:ViT-B-32/NAME.*laion2b_s34b_b79k"):
        check_backbone("open_clip:ViT-B-32")
    pickled = tmp_path / "weights.pt"
    torch.save({}, pickled)
    with pytest.raises(ModelError, match=r"weights\.pt.*save_model\(.*'weights\.safetensors'"):
        check_backbone(f"open_clip:ViT-B-32/{pickled}")
    check_backbone("open_clip:ViT-B-32/laion2b_s34b_b79k")
    truncated = tmp_path / "weights.safetensors"
    truncated.write_bytes(b"short")
    from captune.backbones.open_clip import OpenClip

    with pytest.raises(ModelError, match=truncated.name):
        OpenClip.load(saved("tiny-vit").partition("/")[0] + f"/{truncated}")


def drop_all(folder: Path) -> None:
    save_file({}, folder / "open_clip_model.safetensors")


def drop_one(folder: Path) -> None:
    tensors = load_file(folder / "open_clip_model.safetensors")
    del tensors["visual.conv1.weight"]
    save_file(tensors, folder / "open_clip_model.safetensors")


def reshape_one(folder: Path) -> None:
    tensors = load_file(folder / "open_clip_model.safetensors")
    save_file({**tensors, "visual.conv1.weight": torch.zeros(3, 3)}, folder / "open_clip_model.safetensors")


def cut(folder: Path) -> None:
    content = (folder / "open_clip_model.safetensors").read_bytes()
    (folder / "open_clip_model.safetensors").write_bytes(content[: len(content) // 2])


def configure(**changes: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "open_clip_config.json").read_text())
        (folder / "open_clip_config.json").write_text(json.dumps({**config, **changes}))

    return change


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut in half": cut,
    "no tensors": drop_all,
    "a tensor is missing": drop_one,
    "a tensor of another shape": reshape_one,
    "no weights": lambda folder: (folder / "open_clip_model.safetensors").unlink(),
    "half a configuration": lambda folder: (folder / "open_clip_config.json").write_text('{"model_cfg": {'),
    "a deep configuration": lambda folder: (folder / "open_clip_config.json").write_text("[" * 100_000),
    "a list": lambda folder: (folder / "open_clip_config.json").write_text("[]"),
    "no model": configure(model_cfg={}),
    "no text tower": configure(model_cfg={"embed_dim": 24, "vision_cfg": VISION}),
    "an image tower that is a list": configure(model_cfg={"embed_dim": 24, "vision_cfg": [1], "text_cfg": TEXT}),
    "means of text": configure(preprocess_cfg={"mean": "abc"}),
    "standard deviations of zero": configure(preprocess_cfg={"std": [0, 0, 0]}),
    "an interpolation that is a list": configure(preprocess_cfg={"interpolation": ["bicubic"]}),
}


def use(name: str) -> None:
    from captune.backbones.open_clip import OpenClip

    OpenClip.prompt_towers(name.partition(":")[2])
    load_backbone(name)


@needs_open_clip
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_one_clear_error(damage: str, saved: Callable[[str], str], tmp_path: Path) -> None:
    name = f"open_clip:local-dir:{tmp_path}"
    shutil.copy(saved("tiny-vit").partition("/")[2], tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIGS["tiny-vit"]}))
    DAMAGE[damage](tmp_path)
    with pytest.raises(ModelError) as error:
        use(name)
    assert len(str(error.value)) < 1000


def test_missing_extra_answers_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from captune.backbones import open_clip as ours

    monkeypatch.setattr(ours, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'captune\[open_clip\]'"):
        check_backbone("open_clip:ViT-B-32/laion2b_s34b_b79k")


def test_library_that_does_not_import_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from captune.backbones import open_clip as ours

    monkeypatch.setattr(ours, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ModelError, match="torchvision"):
        check_backbone("open_clip:ViT-B-32/laion2b_s34b_b79k")


def test_preprocessing_that_cannot_be_followed_is_refused() -> None:
    from captune.backbones.open_clip import read_preprocessing

    settings = {
        "size": (32, 32),
        "mean": (0, 0, 0),
        "std": (1, 1, 1),
        "interpolation": "bicubic",
        "resize_mode": "squash",
    }
    assert (read_preprocessing(settings, "x").image_size, read_preprocessing(settings, "x").resize) == (32, 0)
    for wrong in ({"size": (32, 48)}, {"resize_mode": "longest"}):
        with pytest.raises(ModelError, match="'x'"):
            read_preprocessing({**settings, **wrong}, "x")
