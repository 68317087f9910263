"""The corrections file: nothing that was confirmed is lost, nothing that was cut off stays."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from captune.core.errors import CaptuneError, InputError
from captune.review.answers import collect_answers
from captune.review.corrections import Correction, Corrections

NAMES = ("cat", "dog", "fox")


def test_what_was_said_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "corrections.jsonl"
    first = Corrections(path, "anna")
    said = first.add("label", "cat", images=("a.jpg", "ü \u2028b.jpg"), suggestion="check")
    first.add("merge", "pet", names=("cat", "dog"))
    again = list(Corrections(path, "ben"))
    assert again == list(first)
    assert again[0] == said
    assert (again[0].person, again[0].kind, again[0].images[1]) == ("anna", "label", "ü \u2028b.jpg")
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_was_cut_off_is_removed_before_the_next_answer(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "corrections.jsonl"
    Corrections(path).add("label", "cat", images=("a.jpg",))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:cut])
    opened = Corrections(path)
    assert len(opened) == 1
    opened.add("label", "dog", images=("b.jpg",))
    assert [said.label for said in Corrections(path)] == ["cat", "dog"]
    assert path.read_bytes().startswith(whole)


HOSTILE = [
    b'{"kind": "label", "lab',
    b"[]",
    b"7",
    b"\xff",
    b'{"kind": "shout"}',
    b'{"kind": "label", "label": "cat"}',
    b'{"kind": "describe", "label": "cat", "sentences": ["half of \\ud800"]}',
    b'{"kind": "label", "label": "cat", "images": ["a.jpg"], "id": "\\udfff"}',
    b'{"kind": "describe", "label": "cat", "sentences": ["' + b"x" * 1_000_000 + b'"]}',
    b'{"kind": "add", "label": "' + b"x" * 140_000 + b'"}',
]


@pytest.mark.parametrize("line", HOSTILE)
def test_a_line_that_is_no_correction_is_skipped_and_told(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "corrections.jsonl"
    Corrections(path).add("label", "cat", images=("a.jpg",))
    path.write_bytes(path.read_bytes() + line + b"\n")
    Corrections(path).add("label", "dog", images=("b.jpg",))
    content, again = path.read_bytes(), Corrections(path)
    assert [made.label for made in again] == ["cat", "dog"]
    assert len(again.problems) == 1
    assert "line 2" in again.problems[0]
    assert line in content


@pytest.mark.parametrize(
    "wrong", [{"label": "x" * 140_000}, {"sentences": ("\ud800",)}, {"id": "\ud800"}, {"sentences": ("x" * 1_000_000,)}]
)
def test_what_could_not_be_read_again_is_not_recorded(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = tmp_path / "corrections.jsonl"
    Corrections(path).add("add", "cat")
    content = path.read_bytes()
    with pytest.raises(InputError):
        Corrections(path).add("add", **{"label": "dog", **wrong})
    assert path.read_bytes() == content


def test_order_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "corrections.jsonl"
    times = iter(["2026-01-01T12:00", "2026-01-01T11:00"])
    made = Corrections(path, "anna")
    for label in ("cat", "dog"):
        made.add("label", label, images=("a.jpg",), time=next(times))
    again = Corrections(path, "anna")
    assert collect_answers(again.active(), NAMES).used()["a.jpg"].label == "dog"
    last = again.last()
    assert last is not None
    assert last.label == "dog"
    again.undo(last)
    assert collect_answers(again.active(), NAMES).used()["a.jpg"].label == "cat"


def test_a_number_from_elsewhere_cannot_come_before_or_after_everything(tmp_path: Path) -> None:
    path = tmp_path / "corrections.jsonl"
    path.write_bytes(Correction("label", "fox", ("a.jpg",), number=2**62).line())
    made = Corrections(path, "anna")
    made.add("label", "dog", images=("a.jpg",))
    assert [one.number for one in Corrections(path)] == [1, 2]


def test_files_of_two_people_give_the_same_answers_in_either_order(tmp_path: Path) -> None:
    for person, label in (("anna", "cat"), ("ben", "dog")):
        Corrections(tmp_path / f"{person}.jsonl", person).add("label", label, images=("a.jpg",))
    joined = []
    for first, second in (("anna", "ben"), ("ben", "anna")):
        made = Corrections(None, first)
        made.merge([tmp_path / f"{first}.jsonl", tmp_path / f"{second}.jsonl"])
        joined.append(collect_answers(made.active(), NAMES).used()["a.jpg"].label)
    assert joined[0] == joined[1]


def test_two_writers_do_not_lose_each_others_answers(tmp_path: Path) -> None:
    path = tmp_path / "corrections.jsonl"
    anna, ben = Corrections(path, "anna"), Corrections(path, "ben")
    for i in range(5):
        anna.add("label", "cat", images=(f"{i}.jpg",))
        ben.add("label", "dog", images=(f"{i}.jpg",))
    assert anna.refresh() == 1  # the others were read while writing
    assert len(anna) == len(ben) == len(Corrections(path)) == 10


def test_files_of_several_people_are_merged_once(tmp_path: Path) -> None:
    mine, theirs = Corrections(tmp_path / "a.jsonl", "anna"), Corrections(tmp_path / "b.jsonl", "ben")
    mine.add("label", "cat", images=("a.jpg",))
    theirs.add("label", "dog", images=("b.jpg",))
    assert mine.merge([tmp_path / "b.jsonl", tmp_path / "b.jsonl"]) == 1
    assert mine.merge([tmp_path / "b.jsonl"]) == 0
    assert [said.person for said in Corrections(tmp_path / "a.jsonl")] == ["anna", "ben"]
    with pytest.raises(InputError, match=r"c\.jsonl"):
        mine.merge([tmp_path / "c.jsonl"])


def test_undo_takes_back_the_last_own_answer_and_can_be_repeated() -> None:
    said = Corrections(person="anna")
    first = said.add("label", "cat", images=("a.jpg",))
    second = said.add("label", "dog", images=("a.jpg",))
    said.extend([Correction("label", "fox", ("b.jpg",), person="ben")])
    assert said.last() == second
    said.add("undo", undoes=second.id)
    assert said.last() == first
    undo = said.add("undo", undoes=first.id)
    assert [entry.person for entry in said.active()] == ["ben"]
    said.add("undo", undoes=undo.id)
    assert said.active()[0] == first


def test_an_answer_that_cannot_be_saved_is_told(tmp_path: Path) -> None:
    said = Corrections(tmp_path / "corrections.jsonl")
    (tmp_path / "corrections.jsonl").mkdir()
    with pytest.raises(CaptuneError, match="could not be saved"):
        said.add("label", "cat", images=("a.jpg",))
    assert len(said) == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_an_answer_that_is_told_as_not_saved_never_counts(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int) -> None:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "corrections.jsonl"
    made = Corrections(path)
    made.add("label", "cat", images=("a.jpg",))
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fail)
        with pytest.raises(CaptuneError, match=os.strerror(number)):
            made.add("remove", "cat")
    assert [one.kind for one in Corrections(path)] == ["label"]
    made.add("label", "dog", images=("b.jpg",))
    assert [one.label for one in Corrections(path)] == [one.label for one in made] == ["cat", "dog"]


WRITER = """
import sys
from captune.review.corrections import Corrections
said = Corrections(sys.argv[1], "anna")
print("ready", flush=True)
for number in range(100000):
    said.add("label", "cat", images=(f"{number}.jpg",))
    print(number, flush=True)
"""


@pytest.mark.parametrize("seconds", [0.02, 0.05, 0.11])
def test_a_kill_loses_no_confirmed_answer(tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "corrections.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    time.sleep(seconds)
    os.kill(writer.pid, signal.SIGKILL)
    confirmed = [int(line) for line in writer.stdout.read().splitlines() if line]
    writer.wait()
    after = Corrections(path, "ben")
    kept = [said.images[0] for said in after]
    assert kept[: len(confirmed)] == [f"{number}.jpg" for number in confirmed]
    after.add("label", "dog", images=("later.jpg",))
    assert [said.images[0] for said in Corrections(path)] == [*kept, "later.jpg"]


def test_answers_follow_renamed_and_merged_classes() -> None:
    said = Corrections(person="anna")
    said.add("label", "cat", images=("a.jpg",))
    said.add("label", "dog", images=("b.jpg",))
    said.add("rename", "kitten", names=("cat",))
    said.add("merge", "pet", names=("kitten", "dog"))
    answers = collect_answers(said.active(), NAMES, {"cat": ["a cat"], "dog": ["a dog"]})
    assert answers.names == ["pet", "fox"]
    assert {image: answer.label for image, answer in answers.used().items()} == {"a.jpg": "pet", "b.jpg": "pet"}
    assert answers.descriptions == {"kitten": ("a cat",), "dog": ("a dog",)}
    assert answers.parts("pet") == ("kitten", "dog")
    assert answers.origins("pet") == ("cat", "dog")
    assert [answer.part for answer in answers.used().values()] == ["kitten", "dog"]
    assert answers.problems == []


def test_renames_travel_with_the_answers() -> None:
    """Answers of an old run, whose names were corrected there, fit a new run that has the right names."""
    made = Corrections(person="anna")
    made.add("label", "chaparal", images=("a.jpg",))
    made.add("rename", "fox", names=("chaparal",))
    made.add("label", "chaparal", images=("b.jpg",))  # of somebody who did not know the new name
    answers = collect_answers(made.active(), NAMES)
    assert {image: answer.label for image, answer in answers.used().items()} == {"a.jpg": "fox", "b.jpg": "fox"}
    assert answers.problems == []


def test_undo_of_an_answer_of_somebody_else_says_whose_it_was() -> None:
    made = Corrections(person="anna")
    made.extend([Correction("label", "fox", ("b.jpg",), person="ben")])
    assert "of ben" in made.undo(made.active()[0])
    own = made.add("label", "fox", images=("b.jpg",))
    assert "of" not in made.undo(own)


def test_an_image_that_was_chosen_on_purpose_never_becomes_a_check() -> None:
    made = Corrections(person="anna")
    made.add("label", "cat", images=("a.jpg",))
    made.add("label", "cat", images=("a.jpg",), suggestion="check")
    made.add("label", "cat", images=("b.jpg",), suggestion="check")
    made.add("label", "dog", images=("b.jpg",))
    found = collect_answers(made.active(), NAMES).used()
    assert (found["a.jpg"].is_check, found["b.jpg"].is_check) == (False, True)


def test_nothing_is_lost_when_a_class_is_removed() -> None:
    said = Corrections(person="anna")
    said.add("label", "cat", images=("a.jpg",))
    removed = said.add("remove", "cat")
    answers = collect_answers(said.active(), NAMES)
    assert answers.names == ["dog", "fox"]
    assert (answers.used(), len(answers.problems)) == ({}, 1)
    said.add("undo", undoes=removed.id)
    assert collect_answers(said.active(), NAMES).used()["a.jpg"].label == "cat"


def test_contradictions_between_people_are_told() -> None:
    said = Corrections(person="anna")
    said.add("label", "cat", images=("a.jpg",))
    said.add("label", "dog", images=("a.jpg",))  # a second thought is no contradiction
    assert collect_answers(said.active(), NAMES).problems == []
    said.extend([Correction("label", "fox", ("a.jpg",), person="ben")])
    answers = collect_answers(said.active(), NAMES)
    assert answers.used()["a.jpg"].label == "fox"
    assert "anna" in answers.problems[0] and "ben" in answers.problems[0]  # noqa: PT018


@pytest.mark.parametrize(
    ("n_images", "n_marked", "n_typical"),
    [(1, 0, 1), (8, 0, 2), (8, 1, 1), (8, 4, 1), (12, 0, 3), (40, 0, 5), (40, 2, 3)],
)
def test_the_most_typical_images_of_a_group_count(n_images: int, n_marked: int, n_typical: int) -> None:
    """No more than a quarter of a group; odd ones do not make room for images that nobody looked at."""
    images = tuple(f"{i:02}.jpg" for i in range(n_images))
    said = Corrections(person="anna")
    if n_marked:
        said.add("not", "dog", images=images[:n_marked], group=3)
    said.add("label", "dog", images=images[n_marked:], group=3)
    found = collect_answers(said.active(), NAMES).used()
    typical = [image for image, answer in found.items() if answer.is_typical]
    assert typical == list(images[n_marked : n_marked + n_typical])
    assert len(found) == n_images - n_marked


def test_undo_takes_a_named_group_back_with_its_marks_only() -> None:
    said = Corrections(person="anna")
    other = said.add("not", "dog", images=("z.jpg",), group=5)
    said.add("not", "dog", images=("a.jpg",), group=3)
    named = said.add("label", "dog", images=("c.jpg", "d.jpg"), group=3)
    said.undo(named)
    assert said.active() == [other]


def test_an_answer_about_an_image_is_stronger_than_one_about_its_group() -> None:
    said = Corrections(person="anna")
    said.add("label", "cat", images=("a.jpg",))
    said.add("not", "dog", images=("c.jpg",), group=3)
    said.add("label", "dog", images=("a.jpg", "b.jpg", "c.jpg"), group=3)
    found = collect_answers(said.active(), NAMES).used()
    assert {image: (answer.label, answer.is_group) for image, answer in found.items()} == {
        "a.jpg": ("cat", False),
        "b.jpg": ("dog", True),
    }
