"""A plan is checked before anything is loaded, and all that is wrong with it is told at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import write_images

from captune.core.errors import InputError
from captune.core.settings import RunSettings
from captune.plan import make_plan


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos", 3)


def test_nothing_needs_to_be_set(photos: Path) -> None:
    plan = make_plan(photos, ["cat", "dog"], None, {})
    assert plan.settings == RunSettings()
    assert len(plan.task.unlabeled) == 3
    assert plan.all_settings()["method"] == "auto"


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    wrong = {"backbone": "duel:x", "template": "photo", "batch_size": 0, "sead": 1, "describer": "opanai:x"}
    with pytest.raises(InputError) as caught:
        make_plan(tmp_path / "gone", ["cat", "cat"], None, wrong)
    message = str(caught.value)
    for words in (
        "'duel'",
        "'photo'",
        "batch_size = 0",
        "'sead'",
        "'opanai'",
        "'cat'",
        "gone",
    ):
        assert words in message


@pytest.mark.parametrize("value", [3, None, ["zero_shot"]])
def test_a_method_that_is_no_name(photos: Path, value: object) -> None:
    with pytest.raises(InputError, match="methods"):
        make_plan(photos, ["cat", "dog"], None, {"method": value})


def test_one_problem_is_told_without_a_heading(photos: Path) -> None:
    with pytest.raises(InputError) as one:
        make_plan(photos, ["cat"], None, {})
    with pytest.raises(InputError) as two:
        make_plan(photos, ["cat"], None, {"seed": -1})
    assert str(two.value).splitlines()[0] not in str(one.value)


def test_all_images_labeled_leaves_nothing_to_adapt_to(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,label\n" + "".join(f"photos/00{i}.png,cat\n" for i in range(3)))
    with pytest.raises(InputError, match="unlabeled"):
        make_plan(photos, ["cat", "dog"], tmp_path / "l.csv", {})


def test_a_list_inside_a_list_of_problems_is_indented(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        make_plan(tmp_path / "gone", ["cat", "dog"], None, {"epochs": -1, "seed": -1, "method": "cap"})
    lines = str(raised.value).splitlines()
    heading = next(i for i, line in enumerate(lines) if line.endswith("settings cannot be used:"))
    assert lines[heading].startswith("  - ")
    assert all(line.startswith("    - ") for line in lines[heading + 1 : heading + 3])
