"""Classes that are renamed and merged before a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from captune.core.errors import InputError
from captune.data.labels import by_new_name, new_names, parse_merges, parse_renames, rename_classes
from captune.data.vocabulary import Vocabulary

DOGS = Vocabulary(("pug", "chihuahua", "husky"), ("a photo of a {}",))


def test_flags_are_parsed() -> None:
    assert parse_renames(["pug=mops", " husky = sled dog "]) == {"pug": "mops", "husky": "sled dog"}
    assert parse_merges(["small dog=pug, chihuahua"]) == {"small dog": ["pug", "chihuahua"]}


def test_a_table_has_old_and_new_names(tmp_path: Path) -> None:
    table = tmp_path / "names.csv"
    table.write_text("old,new\npug,small dog\nchihuahua , small dog\n")
    renames = parse_renames([str(table), "husky=sled dog"])
    assert renames == {"pug": "small dog", "chihuahua": "small dog", "husky": "sled dog"}
    assert by_new_name(renames) == {"sled dog": ["husky"], "small dog": ["pug", "chihuahua"]}
    assert rename_classes(DOGS, renames, {}).names == ("small dog", "sled dog")
    with pytest.raises(InputError, match="'pug' is repeated"):
        parse_renames([str(table), "pug=mops"])
    table.write_text("old,new\npug,\n")
    with pytest.raises(InputError, match="'pug', ''"):
        parse_renames([str(table)])
    table.write_text("before,after\npug,mops\n")
    with pytest.raises(InputError, match="no 'old' column"):
        parse_renames([str(table)])


@pytest.mark.parametrize("pair", ["pug", "=mops", "pug=", "=", ""])
def test_what_is_no_pair_is_told(pair: str) -> None:
    with pytest.raises(InputError, match="--rename"):
        parse_renames([pair])
    with pytest.raises(InputError, match="--merge"):
        parse_merges([pair, "a=b,,c"])


def test_a_repeated_name_is_told() -> None:
    with pytest.raises(InputError, match="repeated"):
        parse_renames(["pug=a", "pug=b"])


def test_a_merged_class_is_represented_by_all_its_names() -> None:
    merged = rename_classes(DOGS, {"husky": "sled dog"}, {"small dog": ["pug", "chihuahua"]})
    assert merged.names == ("small dog", "sled dog")
    assert merged.texts(0) == ("a photo of a pug", "a photo of a chihuahua")
    assert merged.texts(1) == ("a photo of a sled dog",)


def test_texts_that_are_embedded_keep_their_names() -> None:
    renamed = rename_classes(Vocabulary(DOGS.names, ("{}",)), {"pug": "mops"}, {}, embedded=True)
    assert (renamed.names, renamed.texts(0)) == (("mops", "chihuahua", "husky"), ("pug",))


def test_a_class_can_take_in_others() -> None:
    merged = rename_classes(DOGS, {}, {"pug": ["pug", "chihuahua"]})
    assert (merged.names, len(merged.texts(0))) == (("pug", "husky"), 2)


def test_labels_may_have_old_names_of_classes_that_were_renamed_before() -> None:
    assert rename_classes(DOGS, {"mops": "pug"}, {}) == DOGS
    assert new_names({"mops": "pug"}, {"small dog": ["small dog", "toy"]}) == {"mops": "pug", "toy": "small dog"}


def test_descriptions_follow_their_class() -> None:
    described = DOGS.with_descriptions({2: ["a big dog"]})
    merged = rename_classes(described, {"husky": "sled dog"}, {"small dog": ["pug", "chihuahua"]})
    assert merged.texts(1) == ("a big dog",)


def test_unknown_and_contradictory_names_are_told() -> None:
    with pytest.raises(InputError, match="Did you mean 'pug'"):
        rename_classes(DOGS, {"pugg": "mops"}, {})
    with pytest.raises(InputError, match="both 'mops' and 'small dog'"):
        rename_classes(DOGS, {"pug": "mops"}, {"small dog": ["pug", "husky"]})
