"""Paths in little memory behave as a tuple of paths does."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from captune.data.images import ImageCollection
from captune.data.keys import KeyList, KeySet
from captune.data.paths import ImagePaths

NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), min_size=1, max_size=12)


@given(st.lists(NAMES), st.sampled_from([".", "data", "/data", "data/x"]))
def test_they_are_the_paths_they_were_made_of(names: list[str], root: str) -> None:
    paths = tuple(Path(root) / name for name in names)
    held = ImagePaths.of(paths, Path(root))
    assert tuple(held) == paths
    assert tuple(ImagePaths.below(Path(root), names)) == paths
    collection = ImageCollection(paths, Path(root))
    for i, path in enumerate(paths):
        shown = path.relative_to(root) if path.is_relative_to(root) else path
        assert collection.name(i) == shown.as_posix()


def test_indices_slices_and_subsets() -> None:
    paths = tuple(Path(f"{i}.png") for i in range(5))
    held = ImagePaths.of(paths, Path())
    assert held[-1] == paths[-1]
    assert held[np.int64(2)] == paths[2]
    assert tuple(held[1:4]) == paths[1:4]
    assert tuple(held.subset([3, 0]).subset([1])) == (paths[0],)
    assert paths[3] in held
    with pytest.raises(IndexError, match="5"):
        held[5]


def test_equal_paths_are_equal_and_serve_as_a_key() -> None:
    paths = tuple(Path(f"a/{i}.png") for i in range(4))
    first, again, other = (
        ImagePaths.of(paths, Path("a")),
        ImagePaths.of(paths, Path()),
        ImagePaths.of(paths[1:], Path()),
    )
    assert first == again
    assert hash(first) == hash(again)
    assert first != other
    assert first.subset([0, 1, 2, 3]) == first
    assert {ImageCollection(first, Path("a")): 1}[ImageCollection(paths, Path("a"))] == 1
    assert first != paths


def test_joined_paths_keep_their_order() -> None:
    first = ImagePaths.of([Path("a/1.png"), Path("a/2.png")], Path("a"))
    second = ImagePaths.of([Path("b/3.png")], Path("b"))
    nothing = ImagePaths.of([], Path())
    joined = first.subset([1]) + second + first + nothing
    assert [str(path) for path in joined] == ["a/2.png", "b/3.png", "a/1.png", "a/2.png"]
    assert tuple(first + first) == tuple(first) * 2
    assert nothing + first is first


def test_they_travel_to_other_processes() -> None:
    held = ImagePaths.of([Path("a/1.png")], Path("a"))
    assert tuple(pickle.loads(pickle.dumps(held))) == tuple(held)


def test_a_row_costs_few_bytes() -> None:
    held = ImagePaths.below(Path("/data"), (f"{i:08d}.jpg" for i in range(1000)))
    assert len(pickle.dumps(held)) < 1000 * (12 + 8) + 1000


@given(st.lists(st.sampled_from("abcdefgh")))
def test_repeated_digests_are_counted(texts: list[str]) -> None:
    keys = KeyList()
    for text in texts:
        keys.add(text)
    expected = sorted((texts.index(text), texts.count(text)) for text in set(texts) if texts.count(text) > 1)
    assert KeySet(keys.keys()).repeated() == expected
