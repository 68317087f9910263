"""Files with answers may contain anything: they are used, or refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from captune.core.errors import InputError
from captune.review.answers import read_answers


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000, "-1", "1.5", "one"])
def test_a_group_is_a_number(number: str, tmp_path: Path) -> None:
    (tmp_path / "groups.csv").write_text(f"group,label,answer\n{number},cat,=\n", encoding="utf-8")
    with pytest.raises(InputError, match="expected the number of a group"):
        read_answers(tmp_path / "groups.csv")


def task(image: object, choices: object) -> dict[str, object]:
    result = {"type": "choices", "value": {"choices": choices}}
    return {"data": {"image": image}, "annotations": [{"result": [result]}]}


@pytest.mark.parametrize(
    "tasks",
    [
        [task("http://[", ["cat"])],
        [task("\ud800.png", ["cat"])],
        [task("a.png", ["\ud800"])],
        [{"data": [], "annotations": []}],
        [{"data": {"image": "a.png"}, "annotations": [{"result": [{"type": "choices"}]}]}],
        [7],
        {},
    ],
)
def test_an_export_that_says_anything_else_is_refused(tasks: object, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    with pytest.raises(InputError, match=r"tasks\.json"):
        read_answers(tmp_path / "tasks.json")


def test_choices_that_are_no_list_are_no_answer(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([task("a.png", {"0": "cat"}), task("b.png", ["dog"])]))
    assert [made.label for made, _ in read_answers(tmp_path / "tasks.json")] == ["dog"]


def test_decomposed_answers_are_composed(tmp_path: Path) -> None:
    (tmp_path / "looks.csv").write_text("path,label,answer\na.png,cat,cafe\u0301\n", encoding="utf-8")
    assert [made.label for made, _ in read_answers(tmp_path / "looks.csv")] == ["caf\xe9"]
