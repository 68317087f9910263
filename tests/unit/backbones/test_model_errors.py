"""What a wrong id or a damaged model answers: the value, what was expected, what to do."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from captune.backbones import hf
from captune.backbones.base import load_backbone
from captune.core.errors import CaptuneError, ModelError, UnknownNameError
from captune.plan import check_backbone

Folders = Callable[[str], Path]


@pytest.fixture
def clip(model_folder: Folders, tmp_path: Path) -> Path:
    """Return a copy that a test may damage."""
    return Path(shutil.copytree(model_folder("clip"), tmp_path / "model"))


@pytest.fixture
def dual(model_folder: Folders, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder("dual_dinov2"), tmp_path / "model"))


def answer(identifier: str, only_load: bool = False) -> str:
    """Return what an id answers when it is checked, or when it is loaded for what a check cannot see."""
    if only_load:
        check_backbone(identifier)
    with pytest.raises(CaptuneError) as caught:
        (load_backbone if only_load else check_backbone)(identifier)
    with pytest.raises(type(caught.value)):
        load_backbone(identifier)
    return str(caught.value)


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_wrong_source() -> None:
    with pytest.raises(UnknownNameError, match=r"'hgf'.*'hf'.*dual"):
        check_backbone("hgf:openai/clip-vit-base-patch32")
    with pytest.raises(UnknownNameError, match="source:name"):
        check_backbone("ViT-B/32")


def test_wrong_hub_name_answers_quickly_with_the_nearest() -> None:
    check_started = time.monotonic()
    message = answer("hf:openai/clip-vit-bas-patch32")
    assert time.monotonic() - check_started < 5
    assert "'openai/clip-vit-bas-patch32'" in message
    assert "'openai/clip-vit-base-patch32'" in message
    assert "HF_HUB_OFFLINE" in message


def test_a_right_hub_name_is_not_suggested_to_itself() -> None:
    message = str(hf._not_loaded("openai/clip", "config.json", OSError("offline"), ("openai/clip", "openai/clip-2")))
    assert "'openai/clip'" in message
    assert "Did you mean" not in message


def test_hub_that_cannot_be_resolved_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def unresolved(*_: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(hf.socket, "getaddrinfo", unresolved)
    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    hf.hub_unreachable.cache_clear()
    assert hf.hub_unreachable()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    hf.hub_unreachable.cache_clear()
    assert not hf.hub_unreachable()
    hf.hub_unreachable.cache_clear()


def test_no_name() -> None:
    assert "openai/clip-vit-base-patch32" in answer("hf:")
    assert "dual_encoder.json" in answer("dual:")


def test_missing_folder(tmp_path: Path) -> None:
    for source in ("hf", "dual"):
        assert f"'{tmp_path}/nothing'" in answer(f"{source}:{tmp_path}/nothing")


def test_folder_without_a_model(tmp_path: Path) -> None:
    message = answer(f"hf:{tmp_path}")
    assert f"'{tmp_path}'" in message
    assert "config.json" in message


def test_folder_without_weights(clip: Path) -> None:
    (clip / "model.safetensors").unlink()
    assert "model.safetensors" in answer(f"hf:{clip}")


def test_pickled_weights_are_refused(clip: Path) -> None:
    torch.save(load_file(clip / "model.safetensors"), clip / "pytorch_model.bin")
    (clip / "model.safetensors").unlink()
    message = answer(f"hf:{clip}")
    assert "'pytorch_model.bin', a pickle" in message
    assert "model.safetensors" in message


def test_a_file_of_weights_is_not_a_folder(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "weights.pt")
    message = answer(f"hf:{tmp_path}/weights.pt")
    assert "weights.pt' is a file" in message
    assert "save_pretrained" in message
    assert "open_clip:MODEL" in message


def test_truncated_weights(clip: Path) -> None:
    content = (clip / "model.safetensors").read_bytes()
    for kept in (len(content) // 2, 4, 0):
        (clip / "model.safetensors").write_bytes(content[:kept])
        assert "model.safetensors" in answer(f"hf:{clip}", only_load=True)


def test_missing_tensors(clip: Path) -> None:
    weights = load_file(clip / "model.safetensors")
    del weights["visual_projection.weight"], weights["logit_scale"]
    save_file(weights, clip / "model.safetensors", metadata={"format": "pt"})
    message = answer(f"hf:{clip}", only_load=True)
    assert "2 tensors" in message
    assert "'logit_scale'" in message


def test_tensors_of_a_wrong_shape(clip: Path) -> None:
    weights = load_file(clip / "model.safetensors")
    weights["visual_projection.weight"] = weights["visual_projection.weight"][:5].contiguous()
    save_file(weights, clip / "model.safetensors", metadata={"format": "pt"})
    assert str(clip) in answer(f"hf:{clip}", only_load=True)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model_type": "nonsense"}'])
def test_damaged_configuration(clip: Path, content: str) -> None:
    (clip / "config.json").write_text(content)
    assert str(clip) in answer(f"hf:{clip}")


def test_unsupported_model_type(model_folder: Folders) -> None:
    message = answer(f"hf:{model_folder('dual_dinov2') / 'text'}")
    assert "'bert'" in message
    assert "clip or siglip or siglip2" in message


@pytest.mark.parametrize("damage", ["remove", "empty"])
def test_missing_tokenizer(clip: Path, damage: str) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (clip / file).unlink() if damage == "remove" else (clip / file).write_text("{}")
    for file in ("vocab.json", "merges.txt"):  # transformers 4 writes these too
        (clip / file).unlink(missing_ok=True)
    assert "tokenizer" in answer(f"hf:{clip}", only_load=True)


def test_tokenizer_of_another_model(clip: Path) -> None:
    text = json.loads((clip / "config.json").read_text())["text_config"]
    change(clip / "config.json", text_config={**text, "vocab_size": 9})
    assert " 9. " in answer(f"hf:{clip}", only_load=True)


def test_damaged_preprocessing(clip: Path) -> None:
    (clip / "preprocessor_config.json").write_text("{")
    assert "preprocessor_config.json" in answer(f"hf:{clip}", only_load=True)


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"\xff\xfe\xff"])
def test_malformed_layout(dual: Path, content: bytes) -> None:
    (dual / "dual_encoder.json").write_bytes(content)
    assert "dual_encoder.json" in answer(f"dual:{dual}")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"version": "new"}, "version 'new'"),
        ({"format": "other"}, "captune-dual-encoder"),
        ({"embed_dim": 0}, "embed_dim: Input should be greater than or equal to 1"),
        ({"projection": "../projection.safetensors"}, "outside"),
        ({"projection": "/etc/passwd"}, "outside"),
        ({"text": {"folder": "../text"}}, "outside"),
        ({"text": {"folder": "nowhere"}}, "nowhere"),
        ({"text": {"folder": "vision"}}, "'dinov2' model, expected bert"),
        ({"text": {"folder": "text", "pooling": "max"}}, "text.pooling: Input should be 'mean' or 'cls'"),
    ],
)
def test_wrong_layout(dual: Path, values: dict[str, Any], said: str) -> None:
    change(dual / "dual_encoder.json", **values)
    assert said in answer(f"dual:{dual}")


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("visual_projection.weight", torch.zeros(24, 9), "visual.weight"),
        ("visual_projection.bias", torch.zeros(3), "visual.bias"),
        ("text_projection.weight", None, "text.weight"),
        ("logit_scale", None, "'logit_scale'"),
        ("logit_scale", torch.zeros(2), "'logit_scale'"),
    ],
)
def test_projections_that_do_not_fit(dual: Path, name: str, tensor: torch.Tensor | None, said: str) -> None:
    weights = load_file(dual / "projection.safetensors")
    weights.pop(name) if tensor is None else weights.update({name: tensor})
    save_file(weights, dual / "projection.safetensors")
    assert said in answer(f"dual:{dual}", only_load=True)


def test_truncated_or_missing_projections(dual: Path) -> None:
    file = dual / "projection.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    assert file.name in answer(f"dual:{dual}", only_load=True)
    file.unlink()
    assert file.name in answer(f"dual:{dual}", only_load=True)


def test_dual_tower_with_pickled_weights(dual: Path) -> None:
    (dual / "vision" / "model.safetensors").rename(dual / "vision" / "pytorch_model.bin")
    assert "a pickle" in answer(f"dual:{dual}")


def test_home_folder_is_expanded(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(clip.parent))
    assert load_backbone("hf:~/model").identifier == "hf:~/model"


def test_unknown_embedded_model() -> None:
    message = answer("embedded:patern")
    assert "'patern'" in message
    assert "embedded:patterns" in message


def test_prompts_are_refused_by_a_tower_without_layers() -> None:
    from captune.backbones.base import TextTower

    tower = TextTower(lambda inputs, mask: inputs * 2, width=4)
    assert torch.equal(tower(torch.ones(1, 4)), torch.full((1, 4), 2.0))
    with pytest.raises(ModelError, match="prompts"):
        tower(torch.ones(1, 4), edit=lambda depth, tokens: tokens)
    with pytest.raises(ModelError, match="prompts"):
        tower.words(torch.ones(1))
    with pytest.raises(ModelError, match="prompts"):
        tower.positions()


def test_a_torchvision_of_another_torch_is_named(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fail)
    monkeypatch.setattr("transformers.AutoImageProcessor.from_pretrained", fail)
    with pytest.raises(ModelError, match=r"installed torchvision was built for another torch.*the same index"):
        load_backbone(f"hf:{clip}")
