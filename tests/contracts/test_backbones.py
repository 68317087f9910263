"""What every backbone must do, whatever library it comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from models import MAKERS, identifier
from torch import Tensor

from captune.backbones import embedded
from captune.backbones.base import Backbone, load_backbone
from captune.core import registry
from captune.core.errors import InputError
from captune.plan import check_backbone

LONG = "a striped bird in the field with a red tree and a cat " * 40
TEXTS = ["a photo of a cat", "", " ", LONG, "Ünïcode 猫 🐈 \u200b\n\ttab", "<|endoftext|> [SEP] <eos>", "a" * 5000]
KINDS = [*MAKERS, *(f"embedded:{name}" for name in embedded.available())]
NOT_MADE_HERE = {"image", "joined", "open_clip", "precomputed"}  # have tests of their own in tests/unit/backbones


@pytest.fixture(scope="module", params=KINDS)
def model_id(request: pytest.FixtureRequest, model_folder: Callable[[str], Path]) -> str:
    kind = str(request.param)
    return kind if kind.startswith("embedded:") else identifier(kind, model_folder(kind))


@pytest.fixture(scope="module")
def backbone(model_id: str) -> Backbone:
    return load_backbone(model_id)


def images(backbone: Backbone, count: int) -> Tensor:
    side = backbone.preprocessing.image_size
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def test_every_source_is_under_this_contract() -> None:
    covered = {"hf", "dual", "embedded"} | NOT_MADE_HERE
    assert set(registry.names("backbones")) == covered


def test_check_accepts_what_load_loads_and_the_id_comes_back(model_id: str, backbone: Backbone) -> None:
    check_backbone(model_id)
    assert backbone.identifier == model_id


def test_embeddings_have_length_one_and_the_promised_shape(backbone: Backbone) -> None:
    for embeddings, count in (
        (backbone.encode_image(images(backbone, 3)), 3),
        (backbone.encode_text(backbone.tokenize(TEXTS)), len(TEXTS)),
    ):
        assert embeddings.shape == (count, backbone.embed_dim)
        assert embeddings.dtype == torch.float32
        torch.testing.assert_close(embeddings.norm(dim=-1), torch.ones(count), atol=1e-5, rtol=0)
    assert 0 < backbone.logit_scale < 1000


def test_encoding_is_deterministic(backbone: Backbone) -> None:
    pixels, tokens = images(backbone, 2), backbone.tokenize(TEXTS)
    assert torch.equal(backbone.encode_image(pixels), backbone.encode_image(pixels))
    assert torch.equal(backbone.encode_text(tokens), backbone.encode_text(tokens))


def test_one_image_or_text_alone_is_encoded_as_in_a_batch(backbone: Backbone) -> None:
    pixels = images(backbone, 3)
    torch.testing.assert_close(backbone.encode_image(pixels[:1]), backbone.encode_image(pixels)[:1], atol=1e-5, rtol=0)
    batch = backbone.encode_text(backbone.tokenize(TEXTS))
    for position, text in enumerate(TEXTS):
        alone = backbone.encode_text(backbone.tokenize([text]))
        torch.testing.assert_close(alone, batch[position : position + 1], atol=1e-5, rtol=0)


def test_any_text_can_be_tokenized(backbone: Backbone) -> None:
    tokens = backbone.tokenize(TEXTS)
    assert tokens.ids.shape == tokens.mask.shape
    assert len(tokens) == len(TEXTS)
    assert tokens.mask.dtype == torch.bool
    assert tokens.mask[:, 0].all()  # a text has at least its end
    many = backbone.tokenize([f"a photo of a cat {number}" for number in range(500)])
    assert len(many) == 500
    part = many.chunks(10)[1]
    assert torch.equal(part.ids, many.ids[10:20])
    assert torch.equal(part.mask, many.mask[10:20])


def test_a_text_is_cut_where_the_model_ends(backbone: Backbone) -> None:
    longest = backbone.tokenize([LONG]).ids.shape[1]
    assert backbone.tokenize([LONG + LONG]).ids.shape[1] == longest
    assert backbone.text_tower.positions()[:longest].shape == (longest, backbone.text_tower.width)


def test_words_and_positions_make_what_enters_the_tower(backbone: Backbone) -> None:
    tower, tokens = backbone.text_tower, backbone.tokenize(TEXTS[:1])
    seen: dict[int, Tensor] = {}
    backbone.text_features(tokens, seen.setdefault)
    assert sorted(seen) == list(range(tower.depth))
    expected = tower.words(tokens.ids) + tower.positions()[: tokens.ids.shape[1]]
    torch.testing.assert_close(seen[0], expected, atol=1e-6, rtol=0)


def test_prompts_start_at_the_first_word(backbone: Backbone) -> None:
    start = backbone.text_tower.prompt_start
    one, other = backbone.tokenize(["photo"]).ids[0], backbone.tokenize(["field"]).ids[0]
    assert torch.equal(one[:start], other[:start])
    assert one[start] != other[start]


def test_towers_that_carry_prompts_are_known_before_loading(model_id: str, backbone: Backbone) -> None:
    source, name = registry.split_id("backbones", model_id, "")
    towers = {"image": backbone.image_tower, "text": backbone.text_tower}
    assert registry.load("backbones", source).prompt_towers(name) == {s for s, t in towers.items() if t.depth > 0}


def test_fingerprint_is_stable_and_follows_the_weights(model_id: str, backbone: Backbone) -> None:
    before = backbone.fingerprint()
    backbone.encode_text(backbone.tokenize(TEXTS))
    backbone.encode_image(images(backbone, 1))
    other = load_backbone(model_id)
    assert other.fingerprint() == before == backbone.fingerprint()
    for module in other.modules():
        parameter = next(module.parameters())
        parameter.view(-1)[0] += 1e-3
        assert other.fingerprint() != before
        parameter.view(-1)[0] -= 1e-3
        before = other.fingerprint()  # the difference may leave a rounding error


def test_weights_cannot_be_trained(backbone: Backbone) -> None:
    assert not any(parameter.requires_grad for module in backbone.modules() for parameter in module.parameters())
    assert backbone.device == torch.device("cpu")
    assert backbone.to(torch.device("cpu")) is backbone


@pytest.mark.parametrize("source", registry.names("backbones"))
def test_every_source_explains_a_wrong_name(source: str) -> None:
    from captune.core.errors import CaptuneError

    with pytest.raises(CaptuneError, match=r".{40}") as caught:
        check_backbone(f"{source}:no-such-model")
    assert not isinstance(caught.value, InputError)
