"""Suites that come with captune are found by name wherever one is; files of one's own by their path."""

from __future__ import annotations

from pathlib import Path

import pytest

from captune.benchmark.shipped import FOLDER, find_suite, shipped_suites, suite_title
from captune.benchmark.suite import read_suite
from captune.core.errors import UnknownNameError


def test_a_name_finds_the_suite_that_comes_with_captune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"paper", "smoke", "ablations", "backbones", "longtail"} <= set(shipped_suites())
    assert find_suite("paper") == FOLDER / "paper.yaml"
    (tmp_path / "smoke").mkdir()  # whatever is called so here
    assert read_suite("smoke").name == "smoke"
    assert suite_title(find_suite("smoke")).startswith("Smoke")


def test_a_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()
    own = tmp_path / "suites" / "paper.yaml"
    own.write_text("x: 1")
    assert find_suite("suites/paper.yaml").resolve() == own
    assert find_suite(own) == own
    assert suite_title(own) == "paper"


@pytest.mark.parametrize("word", ["papr", "suites/papr.yaml", "paper.yml", "suites/paper.yaml"])
def test_a_wrong_name_is_answered_with_the_nearest(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match=r"No suite .* Did you mean 'paper'") as caught:
        find_suite(word)
    assert repr(word) in str(caught.value)
    assert "smoke" in str(caught.value)


@pytest.mark.parametrize("word", ["", "a\0b", "x" * 5000])
def test_a_name_that_the_system_refuses_is_no_suite(word: str) -> None:
    if not word:
        assert find_suite(word) == Path()  # the folder one is in, which reading refuses
        return
    with pytest.raises(UnknownNameError, match="No suite"):
        find_suite(word)
