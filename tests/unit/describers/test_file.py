"""Descriptions from a file: the format that a run writes, read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captune.core.errors import InputError, UnknownNameError
from captune.core.text import one_form
from captune.data.vocabulary import read_descriptions, write_descriptions
from captune.describers.base import DescriptionRequest, Descriptions, describe_classes, open_describer

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1).filter(
    lambda text: text == text.strip() == one_form(text) != ""
)


@given(st.dictionaries(WORDS, st.lists(WORDS, min_size=1, max_size=3), max_size=4))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, content: dict[str, list[str]]) -> None:
    path = tmp_path_factory.mktemp("written") / "descriptions.yaml"
    write_descriptions(path, content)
    assert read_descriptions(path) == content


def test_names_that_yaml_takes_for_something_else_are_names(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("on:\n  - a lit lamp\n747:\n  - 1\nnull:\n  - yes\n", encoding="utf-8")
    assert read_descriptions(path) == {"on": ["a lit lamp"], "747": ["1"], "null": ["yes"]}


def test_a_file_lists_all_problems(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("river: blue\nbeach:\n  - ''\n  - [x]\nforest: []\n' ':\n  - x\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        open_describer(f"file:{path}")
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    for part in (
        "'river' must",
        "sentence of 'beach' is ''",
        "sentence of 'beach' is ['x']",
        "'forest' must",
        "the class '' is empty",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n", "d.yaml"),
        ("a: [", "not valid YAML"),
        ("a: &x [*x]", "line 1"),
        ("? [a]\n: - x", "not valid YAML"),
        ("a: [b]\na: [c]", "'a'"),
    ],
)
def test_what_is_no_mapping_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_descriptions(path)


def test_a_file_that_is_missing_binary_or_unnamed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        open_describer(f"file:{tmp_path / 'none.yaml'}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not valid YAML"):
        open_describer(f"file:{tmp_path / 'binary'}")
    with pytest.raises(InputError, match="needs a path"):
        open_describer("file")
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert read_descriptions(tmp_path / "empty.yaml") == {}


def test_classes_are_looked_up_and_the_missing_ones_reported(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    write_descriptions(path, {"river": ["one", "two", "three"]})
    describer = open_describer(f"file:{path}")
    found = describe_classes(describer, ["river", "rivers", "river"], n=2)
    assert found.found == {"river": ["one", "two"]}
    assert "Did you mean 'river'?" in found.problems["rivers"]


def test_none_leaves_every_class_its_name() -> None:
    assert describe_classes(open_describer("none"), ["river", "beach"]) == Descriptions({}, {})
    assert describe_classes(open_describer("none"), []) == Descriptions({}, {})


def test_a_wrong_provider_is_answered_with_the_right_ones() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'openai'"):
        open_describer("opnai:gpt-4o-mini")


def test_the_question_is_built_and_its_places_are_checked() -> None:
    asked = DescriptionRequest("a {strange} [CLS] name", "a photo of {}", 2, "What is [CLS]?")
    assert asked.question == "What is a photo of a {strange} [CLS] name?"
    for phrase in ("a photo", "{} and {}", "{name}", "{} {0}"):
        with pytest.raises(InputError, match=r"expected one \{\}"):
            DescriptionRequest("river", phrase)
