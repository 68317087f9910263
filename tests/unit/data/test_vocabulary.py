"""Class names from every source, templates, and one error that lists all that is wrong with them."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from captune.backbones.base import load_backbone
from captune.core.errors import InputError
from captune.data.images import ImageCollection
from captune.data.labels import read_labels
from captune.data.vocabulary import Vocabulary, fill, read_class_names, read_classes
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
        Vocabulary(("a", "", "A", "b"), ("a photo", "{} and {}", "{a.b}", "{0}", "{", "{:>9}", "{!x}"), {9: ("x",)})
    message = str(caught.value)
    for words in (
        "class name 1 is empty",
        "'a' is repeated 2 times",
        "'a photo' must",
        "'{} and {}' must",
        "'{a.b}' must",
        "'{0}' must",
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


BIRDS = (
    "name,Common_Name,scientific name\n"
    "Blackbird,common blackbird,Turdus merula\n"
    "Robin,European robin,Erithacus rubecula\n"
)
TEMPLATE = "a photo of {scientific name} with common name {common_name}."


def table_of(kind: str, folder: Path) -> Any:
    rows = list(csv.DictReader(io.StringIO(BIRDS)))
    if kind == "csv":
        (folder / "birds.csv").write_text(f"\ufeff{BIRDS}", encoding="utf-8")
        return folder / "birds.csv"
    if kind == "parquet":
        pd.DataFrame(rows).to_parquet(folder / "birds.parquet")
        return str(folder / "birds.parquet")
    if kind == "yaml":
        (folder / "birds.yaml").write_text(yaml.safe_dump({"classes": rows}))
        return folder / "birds.yaml"
    return pd.DataFrame(rows) if kind == "pandas" else rows


@pytest.mark.parametrize("kind", ["csv", "parquet", "yaml", "pandas", "mappings"])
def test_columns_of_a_table_fill_the_template(tmp_path: Path, kind: str) -> None:
    vocabulary = read_classes(table_of(kind, tmp_path), TEMPLATE)
    assert vocabulary.names == ("Blackbird", "Robin")
    assert vocabulary.texts(1) == ("a photo of Erithacus rubecula with common name European robin.",)
    by_name = read_classes(table_of(kind, tmp_path), "the {}")
    assert by_name == Vocabulary(("Blackbird", "Robin"), ("the {}",))
    both = read_classes(table_of(kind, tmp_path), "{} ({scientific name})")
    assert both.texts(0) == ("Blackbird (Turdus merula)",)


def test_a_new_class_fills_every_placeholder_with_its_name() -> None:
    assert fill(TEMPLATE, "Puffin") == "a photo of Puffin with common name Puffin."
    assert Vocabulary(("a", "b"), ("{name}: {x}",)).texts(0) == ("a: a",)


@pytest.mark.parametrize("kind", ["csv", "parquet", "yaml", "pandas", "mappings"])
def test_a_missing_column_is_named(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match="family"):
        read_classes(table_of(kind, tmp_path), "{} of the family {family}")


def test_names_alone_cannot_fill_columns() -> None:
    with pytest.raises(InputError, match=r"(?s)common_name.*table"):
        read_classes("a,b", "{common_name}")
    with pytest.raises(InputError, match=r"(?s)common_name.*table"):
        read_classes({"a": ["a sentence"], "b": None}, "{common_name}")


@pytest.mark.parametrize("template", ["{", "{} {}"])
def test_a_malformed_template_for_a_table_is_told(template: str) -> None:
    with pytest.raises(InputError, match="template"):
        read_classes([{"name": "Robin"}, {"name": "Wren"}], template)


def test_empty_cells_are_listed_at_once(tmp_path: Path) -> None:
    (tmp_path / "birds.csv").write_text("name,latin\nRobin,\nWren, \nTit,Parus\n")
    with pytest.raises(InputError, match=r"(?s)'Robin': latin is ''.*'Wren': latin is ''"):
        read_classes(tmp_path / "birds.csv", "{latin}")
    assert read_classes(tmp_path / "birds.csv").names == ("Robin", "Wren", "Tit")  # nothing needs the empty cells
    with pytest.raises(InputError, match="'Wren': latin is nan"):
        read_classes([{"name": "Robin", "latin": "E."}, {"name": "Wren", "latin": float("nan")}], "{latin}")


def test_a_csv_file_without_a_header_is_a_list_of_names(tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text("Robin\nWren\n")
    assert read_classes(tmp_path / "names.csv").names == ("Robin", "Wren")


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
