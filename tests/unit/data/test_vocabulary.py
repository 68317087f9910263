"""Class names from every source, templates, and one error that lists all that is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captune.backbones.base import load_backbone
from captune.core.errors import InputError
from captune.data.images import ImageCollection
from captune.data.labels import read_labels
from captune.data.vocabulary import Vocabulary, read_class_names, read_classes
from captune.embeddings.embed import classes_read_alike


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("names.txt", "\ufeffforest \n\n dense river\n"),
        ("names.yaml", "- forest\n- dense river\n"),
        ("names.yml", "classes: [forest, dense river]\n"),
        ("names.yaml", "names:\n  - forest\n  - dense river\n"),
    ],
)
def test_names_from_files(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_text(content, encoding="utf-8")
    assert read_class_names(tmp_path / file) == ("forest", "dense river")


def test_names_from_commas_folders_and_sequences(tmp_path: Path) -> None:
    for name in ("river", "forest", ".cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "readme.txt").write_text("x")
    assert read_class_names(" forest , river") == ("forest", "river")
    assert read_class_names(tmp_path) == ("forest", "river")
    assert read_class_names([" forest", "river"]) == ("forest", "river")


def test_a_comma_list_may_be_longer_than_any_file_name() -> None:
    many = [f"class number {i}" for i in range(500)]
    assert read_class_names(",".join(many)) == tuple(many)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("names.yaml", b"a: 1", "names.yaml"),
        ("names.yaml", b"[a, b", "names.yaml"),
        ("names.txt", b"\xff\xfe\x00", "names.txt"),
    ],
)
def test_a_file_without_names_is_one_clear_error(tmp_path: Path, file: str, content: bytes, words: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_class_names(tmp_path / file)


def test_no_source_of_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=tmp_path.name):
        read_class_names(tmp_path)
    with pytest.raises(InputError, match=r"missing\.txt"):
        read_class_names("missing.txt")


def test_all_problems_of_names_and_templates_are_listed_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Vocabulary(("a", "", "A", "b"), ("a photo", "{} and {}", "{name}", "{", "{:>9}", "{!x}"), {9: ("x",)})
    message = str(caught.value)
    for words in (
        "class name 1 is empty",
        "'a' is repeated 2 times",
        "'a photo' must",
        "'{} and {}' must",
        "'{name}' must",
    ):
        assert words in message
    for words in ("'{' is malformed", "'{:>9}' must", "'{!x}' must", "description for class 9"):
        assert words in message


@pytest.mark.parametrize(
    ("names", "words"),
    [(("a",), "at least 2.* 1"), ((), "at least 2.* 0"), (("a", False, 7), "(?s)1 is False.*2 is 7")],
)
def test_too_few_names_and_names_that_are_no_text(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Vocabulary(names)


def test_no_template_is_an_error() -> None:
    with pytest.raises(InputError, match="template"):
        Vocabulary(("a", "b"), ())


def test_texts_are_templates_or_descriptions() -> None:
    vocabulary = Vocabulary(("a {b}", "c"), ("a photo of {}.", "{{}} {}"))
    assert vocabulary.texts(0) == ("a photo of a {b}.", "{} a {b}")
    described = vocabulary.with_descriptions({1: ["one", "two"]})
    assert described.texts(1) == ("one", "two")
    assert described.texts(0) == vocabulary.texts(0)
    assert vocabulary.descriptions == {}
    assert described.index_of("c") == 1
    assert len(described) == 2


@given(st.text(), st.text())
def test_an_accepted_template_always_holds_the_name(before: str, after: str) -> None:
    template = f"{before}{{}}{after}"
    try:
        vocabulary = Vocabulary(("forest", "river"), (template,))
    except InputError:
        assert "{" in before + after or "}" in before + after
    else:
        assert "forest" in vocabulary.texts(0)[0]


def test_composed_and_decomposed_names_are_one_class(tmp_path: Path) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for name in (composed, decomposed):
        (tmp_path / name / "x").mkdir(parents=True)
    assert read_classes([decomposed, "bar"]).names == (composed, "bar")
    assert read_classes(f"{decomposed},bar").names == (composed, "bar")
    (tmp_path / "names.txt").write_text(f"{decomposed}\nbar\n", encoding="utf-8")
    assert read_classes(tmp_path / "names.txt").names == (composed, "bar")
    with pytest.raises(InputError, match="repeated 2 times"):
        read_classes(tmp_path)
    images = ImageCollection([tmp_path / decomposed / "1.png", tmp_path / "bar" / "2.png"], tmp_path)
    assert read_labels("folders", images, (composed, "bar")).tolist() == [0, 1]
    assert read_labels([composed, "bar"], images, (decomposed, "bar")).tolist() == [0, 1]


def test_names_that_only_look_different_are_reported() -> None:
    with pytest.raises(InputError, match=r"'cat' and 'cat\\u200b' look the same"):
        read_classes(["cat", "cat\u200b", "dog"])
    with pytest.raises(InputError, match=r"contains \\x1b"):
        read_classes(["cat", "\x1b[2J"])


def test_names_that_the_tokenizer_cuts_are_reported(clip_folder: Path) -> None:
    backbone = load_backbone(f"hf:{clip_folder}")
    long = "a " * 95
    vocabulary = Vocabulary((f"{long} dog", f"{long} bird", "car"))
    assert classes_read_alike(backbone, vocabulary) == [vocabulary.names[:2]]
    assert classes_read_alike(backbone, Vocabulary(("cat", "dog"))) == []


def test_no_class_may_have_the_name_of_the_answer_none() -> None:
    with pytest.raises(InputError, match="reserved"):
        Vocabulary(("cat", "None of These"))
