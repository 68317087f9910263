"""Names, kinds, descriptions and captions of the embedded world."""

from __future__ import annotations

import re

import numpy as np
import pytest
import yaml

from captune.world import WORLD_KINDS, class_names, descriptions_path
from captune.world.patterns import CONFUSED, MISMATCHED, WELL_NAMED
from pattern_captions import ALIASES, CONFUSED_PAIRS, STRAYS, VISUAL_WORDS, name_shares, write_captions

MISMATCHED_NAMES = [name for name, kind in WORLD_KINDS.items() if kind == MISMATCHED]


def test_every_class_has_a_kind_and_every_kind_has_classes() -> None:
    assert set(WORLD_KINDS) == set(class_names())
    assert len(class_names()) == 24
    assert set(WORLD_KINDS.values()) == {WELL_NAMED, MISMATCHED, CONFUSED}
    assert {name for pair in CONFUSED_PAIRS for name in pair} == {n for n, k in WORLD_KINDS.items() if k == CONFUSED}
    assert set(ALIASES) == set(STRAYS) == set(MISMATCHED_NAMES)


def test_every_class_has_five_short_descriptions() -> None:
    described = yaml.safe_load(descriptions_path().read_text())
    assert list(described) == list(class_names())
    for sentences in described.values():
        assert len(set(sentences)) == 5
        assert all(20 < len(sentence) < 100 for sentence in sentences)


@pytest.mark.parametrize("name", MISMATCHED_NAMES)
def test_visual_words_and_descriptions_never_leak_a_misleading_name(name: str) -> None:
    described = yaml.safe_load(descriptions_path().read_text())
    told = " ".join([*described[name], *(phrase for phrases in VISUAL_WORDS.values() for phrase in phrases)])
    assert not re.search(rf"\b{name}\b", told.lower())


def test_names_are_used_as_their_kinds_say() -> None:
    shares = name_shares()
    for name, kind in WORLD_KINDS.items():
        elsewhere = sum(share.get(name, 0.0) for other, share in shares.items() if other != name)
        assert sum(shares[name].values()) < 0.7
        if kind == WELL_NAMED:
            assert shares[name][name] > elsewhere
        if kind == MISMATCHED:
            assert shares[name][name] * 5 < elsewhere
    for common, rare in CONFUSED_PAIRS:
        assert shares[rare][common] > shares[rare][rare]


def test_captions_are_determined_by_the_generator() -> None:
    labels = np.arange(24)
    dyes = np.zeros((24, 4), dtype=np.int64)
    first = write_captions(labels, dyes, np.random.default_rng(4))
    assert first == write_captions(labels, dyes, np.random.default_rng(4))
    assert first != write_captions(labels, dyes, np.random.default_rng(5))
    assert all("{" not in caption and caption for caption in first)
