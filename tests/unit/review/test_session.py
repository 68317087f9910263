"""A session: every change takes effect at once, says what it did, and can be taken back."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import captune
from captune.core.arrays import Ints
from captune.core.errors import InputError
from captune.report.page import write_report
from captune.review.answers import groups_table
from captune.review.corrections import Correction, Corrections
from captune.review.session import Session
from captune.review.suggestions import expected_change

NAMES = ("cat", "dog", "fox", "owl")
N_IMAGES = 120


def make_world(seed: int = 0) -> tuple[captune.Embeddings, captune.ClassTexts, Ints]:
    """Return well separated classes whose texts lie, for two of them, at the wrong place."""
    generator = np.random.default_rng(seed)
    centers = np.linalg.qr(generator.normal(size=(16, 16)))[0][: len(NAMES)]
    labels = np.arange(N_IMAGES) % len(NAMES)
    images = centers[labels] + 0.15 * generator.normal(size=(N_IMAGES, 16))
    texts = centers[[1, 0, 2, 3]] + 0.3 * generator.normal(size=(4, 16))
    return captune.Embeddings(images), captune.ClassTexts(NAMES, texts, 20.0), labels


@pytest.fixture
def world() -> tuple[Session, Ints]:
    images, texts, labels = make_world()
    return captune.open_session(images, texts, person="anna"), labels


def accuracy(session: Session, labels: Ints) -> float:
    return float(np.mean(session.predictions.labels == labels))


def answer(session: Session, labels: Ints, count: int, checks: float = 0.0) -> captune.Session:
    for suggestion in session.suggest(count, checks=checks):
        session.label(suggestion.position, NAMES[labels[suggestion.position]], suggestion=suggestion.kind)
    return session


def test_a_few_answers_name_the_groups() -> None:
    images, texts, labels = make_world(1)
    session = captune.open_session(images, texts)
    before = accuracy(session, labels)
    assert accuracy(answer(session, labels, 8), labels) > max(0.95, before + 0.2)


def test_every_change_says_what_it_did(world: tuple[Session, Ints]) -> None:
    session, labels = world
    before = [session.names[c] for c in session.predictions.labels]
    image = int(np.flatnonzero(labels == 0)[0])
    change = session.label(image, "cat")
    after = [session.names[c] for c in session.predictions.labels]
    assert after[image] == "cat"
    assert change.n_changed == sum(a != b for a, b in zip(before, after, strict=True)) > 0
    assert sum(move.n_images for move in change.moves) == change.n_changed
    assert all(before.count(move.old) >= move.n_images for move in change.moves)
    assert str(change.n_changed) in change.sentence
    assert change.as_dict()["n_changed"] == change.n_changed


def test_undo_restores_the_predictions(world: tuple[Session, Ints]) -> None:
    session, _ = world
    before = np.array(session.predictions.probabilities)
    session.label(3, "cat")
    session.merge(["cat", "dog"], "pet")
    session.remove("owl")
    for _ in range(3):
        session.undo()
    assert session.names == NAMES
    np.testing.assert_array_equal(session.predictions.probabilities, before)
    with pytest.raises(InputError, match="to undo"):
        session.undo()


def test_renaming_changes_no_prediction(world: tuple[Session, Ints]) -> None:
    session, _ = world
    assert session.rename("cat", "kitten").n_changed == 0
    assert session.names == ("kitten", "dog", "fox", "owl")


def test_suggestions_are_new_deterministic_and_cover_the_classes(world: tuple[Session, Ints]) -> None:
    session, labels = world
    seen: list[int] = []
    for _ in range(4):
        batch = session.suggest(10)
        assert batch == session.suggest(10)
        positions = [suggestion.position for suggestion in batch]
        assert len(set(positions)) == 10
        assert not set(positions) & set(seen)
        assert sum(suggestion.kind == "check" for suggestion in batch) == 2
        assert all(suggestion.reason and suggestion.represents >= 1 for suggestion in batch)
        session.label(
            {s.position: NAMES[labels[s.position]] for s in batch}, suggestion={s.position: s.kind for s in batch}
        )
        seen += positions
    assert set(labels[seen].tolist()) == set(range(4))


def test_suggestions_and_checks_are_the_same_under_any_names_and_in_any_order() -> None:
    images, texts, _ = make_world()
    order = np.random.default_rng(3).permutation(N_IMAGES)
    renamed = captune.Embeddings(images.vectors[order], [f"other-{i}" for i in range(N_IMAGES)])
    one, other = captune.open_session(images, texts), captune.open_session(renamed, texts)
    for ask in (lambda s: s.suggest(20, checks=0.5), lambda s: s.suggest_checks(0.8)):
        found = [(suggestion.position, suggestion.kind) for suggestion in ask(one)]
        assert [(int(order[again.position]), again.kind) for again in ask(other)] == found


def test_skipped_and_shown_images_are_not_suggested_again(world: tuple[Session, Ints]) -> None:
    session, _ = world
    first = session.suggest(5)
    session.skip([suggestion.position for suggestion in first])
    second = session.suggest(5)
    third = session.suggest(5, except_=[suggestion.image for suggestion in second])
    every = [suggestion.position for batch in (first, second, third) for suggestion in batch]
    assert len(set(every)) == 15


def test_all_images_can_be_labeled(world: tuple[Session, Ints]) -> None:
    session, labels = world
    session.label({i: NAMES[c] for i, c in enumerate(labels.tolist())})
    assert accuracy(session, labels) == 1.0
    assert session.suggest(5) == []


def test_a_group_that_fits_no_name_is_asked_for() -> None:
    images, texts, _ = make_world()
    blob = -texts.vectors.mean(axis=0) + 0.02 * np.random.default_rng(5).normal(size=(10, 16))
    session = captune.open_session(captune.Embeddings(np.concatenate([images.vectors, blob])), texts)
    worst = min(session.groups(), key=lambda group: group.fits)
    assert set(worst.images.tolist()) & set(range(N_IMAGES, N_IMAGES + 10))
    assert worst.fits < 0.1
    assert dataclasses.replace(worst, confidence=0.4).question == (
        f"{len(worst)} images look alike and fit no name: name them?"
    )
    for known in ({"confidence": 0.6}, {"fits": 0.2}, {"n_labeled": 1}):
        assert not dataclasses.replace(worst, **{"confidence": 0.4, **known}).question  # type: ignore[arg-type]


def test_a_group_is_named_with_one_answer(world: tuple[Session, Ints]) -> None:
    session, labels = world
    groups = session.groups()
    assert sorted(np.concatenate([group.images for group in groups]).tolist()) == list(range(N_IMAGES))
    for group in groups:
        majority = int(np.bincount(labels[group.images]).argmax())
        odd = [int(i) for i in group.images if labels[i] != majority]
        session.name_group(group.number, NAMES[majority], except_=odd)
    assert accuracy(session, labels) > 0.95
    assert all(group.share > 0.8 for group in session.groups())
    with pytest.raises(InputError, match="no group 99"):
        session.name_group(99, "cat")


def test_an_image_never_has_a_class_that_a_person_denied(world: tuple[Session, Ints]) -> None:
    session, _ = world
    image = 0
    for _ in range(3):
        name = session.names[session.predictions.labels[image]]
        session.exclude(image, name)
        assert session.names[session.predictions.labels[image]] != name


def test_checks_are_not_used_for_adaptation(world: tuple[Session, Ints]) -> None:
    session, labels = world
    assert session.estimate().n_checks == 0
    assert "not verified" in session.estimate().sentence
    before = np.array(session.engine.probabilities)
    answer(session, labels, 10, checks=1.0)
    np.testing.assert_array_equal(session.engine.probabilities, before)
    found = session.estimate()
    rows = sorted(session.labels)
    assert found.accuracy == pytest.approx(np.mean(before[rows].argmax(axis=1) == labels[rows]))
    assert found.low < found.accuracy < found.high
    assert "from 10 checked images" in found.sentence
    assert found.sentence in repr(session)


def test_a_saved_session_is_opened_where_it_was_left(world: tuple[Session, Ints], tmp_path: Path) -> None:
    session, labels = world
    answer(session, labels, 6, checks=0.5)
    session.merge(["fox", "owl"], "wild animal")
    session.exclude(0, "wild animal")
    session.save(tmp_path / "run")
    images, _, _ = make_world()
    again = captune.open_session(tmp_path / "run", images=images, person="ben")
    assert again.names == session.names
    np.testing.assert_allclose(again.predictions.probabilities, session.predictions.probabilities, atol=1e-6)
    assert again.estimate() == session.estimate()
    again.label(7, "dog")
    third = captune.open_session(tmp_path / "run", images=images)  # the answer was recorded, but the run not saved
    np.testing.assert_allclose(third.predictions.probabilities, again.predictions.probabilities, atol=1e-6)


def test_two_sessions_never_disagree_about_the_classes(world: tuple[Session, Ints], tmp_path: Path) -> None:
    """One removes a class, the other one skips an image and saves."""
    session, _ = world
    session.save(tmp_path / "run")
    images, _, _ = make_world()
    first, second = (captune.open_session(tmp_path / "run", images=images, person=person) for person in ("anna", "ben"))
    first.remove("owl")
    second.skip(0)
    second.save()
    for one in (second, captune.open_session(tmp_path / "run", images=images)):
        assert one.names == one.classifier.names == NAMES[:3]
        assert one.predictions.probabilities.shape == (N_IMAGES, 3)
    assert len(captune.load(tmp_path / "run").names) == 3


def test_a_change_is_checked_against_what_others_did(world: tuple[Session, Ints], tmp_path: Path) -> None:
    session, _ = world
    session.save(tmp_path / "run")
    images, _, _ = make_world()
    first, second = (captune.open_session(tmp_path / "run", images=images, person=person) for person in ("anna", "ben"))
    first.rename("owl", "eagle")
    second.label(3, "eagle")
    with pytest.raises(InputError, match="'owl' is not a class"):
        second.label(4, "owl")
    assert second.names == (*NAMES[:3], "eagle")


def test_a_table_of_groups_is_not_applied_to_other_groups(tmp_path: Path) -> None:
    images, texts, _ = make_world()
    session = captune.open_session(images, texts, person="anna")
    before = session.groups()
    lines = "".join(groups_table(before, session.images)).splitlines()
    table = tmp_path / "groups.csv"
    table.write_text("\n".join([lines[0], *(f"{line}fox" for line in lines[1:])]), encoding="utf-8")
    more, _, _ = make_world(1)
    vectors = np.concatenate([more.vectors[:40], images.vectors])
    names = [*(f"new-{i}" for i in range(40)), *(images.name(i) for i in range(len(images)))]
    other = captune.open_session(captune.Embeddings(vectors, names), texts, person="anna")
    change = other.label(table)
    same = {group.digest(other.images) for group in other.groups()} & {group.digest(session.images) for group in before}
    assert len(change.notes) == len(before) - len(same) > 0
    assert {made.label for made in other.corrections} <= {"fox"}
    assert len(other.corrections) == len(same)
    session.label(table)
    assert len(session.corrections) == len(before)


@pytest.mark.parametrize("n_labels", [0, 12])
def test_a_merged_class_is_the_union_of_its_parts(world: tuple[Session, Ints], n_labels: int, tmp_path: Path) -> None:
    session, labels = world
    if n_labels:
        answer(session, labels, n_labels)
    united = np.isin(session.predictions.labels, [1, 2])
    change = session.merge(["dog", "fox"], "red animal")
    assert session.names == ("cat", "red animal", "owl")
    np.testing.assert_array_equal(session.predictions.labels == 1, united)
    assert change.n_changed == 0
    session.label(int(np.flatnonzero(labels == 2)[-1]), "red animal")
    session.save(tmp_path / "run")
    images, _, _ = make_world()
    loaded = captune.load(tmp_path / "run")
    assert loaded.names == session.names
    found = loaded.score_embeddings(images.vectors)
    np.testing.assert_allclose(found, session.engine.probabilities, atol=1e-5)
    again = captune.open_session(tmp_path / "run", images=images)
    np.testing.assert_allclose(again.predictions.probabilities, session.predictions.probabilities, atol=1e-5)
    write_report([tmp_path / "run"])
    with pytest.raises(InputError, match="part of the merged class"):
        session.rename("owl", "fox")
    for _ in range(2):
        session.undo()
    assert session.names == NAMES


def test_none_of_these_is_an_answer(world: tuple[Session, Ints], tmp_path: Path) -> None:
    session, labels = world
    answer(session, labels, 8)
    session.label([0, 4], captune.NONE)
    session.label(5, captune.NONE, suggestion="check")
    session.label(6, NAMES[labels[6]], suggestion="check")
    assert {session.labels[i].label for i in (0, 4, 5)} == {captune.NONE}
    found = session.estimate()
    assert (found.n_checks, found.n_correct) == (2, 1)  # a class is predicted where none is right
    suggested = [suggestion.position for suggestion in session.suggest(100)]
    assert not {0, 4, 5} & set(suggested)
    session.save(tmp_path / "run")
    images, _, _ = make_world()
    assert captune.open_session(tmp_path / "run", images=images).labels == session.labels


def test_the_expected_change_is_a_trial_without_traces(world: tuple[Session, Ints]) -> None:
    session, labels = world
    answer(session, labels, 2)
    before = np.array(session.engine.probabilities)
    assert 0.0 <= expected_change(session, session.suggest(8, checks=0.0)) < 1.0
    assert expected_change(session, []) == 0.0
    np.testing.assert_array_equal(session.engine.probabilities, before)


def test_labels_that_are_known_already_count() -> None:
    images, texts, labels = make_world()
    known = {images.name(i): NAMES[labels[i]] for i in range(8)}
    session = captune.open_session(images, texts, labels=known)
    assert accuracy(session, labels) > accuracy(captune.open_session(images, texts), labels)
    assert len(session.labels) == 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.label(0, "cats"), "Did you mean 'cat'"),
        (lambda s: s.label("nowhere.jpg", "cat"), "nowhere"),
        (lambda s: s.label(N_IMAGES, "cat"), str(N_IMAGES)),
        (lambda s: s.rename("cow", "cat"), "cow"),
        (lambda s: s.rename("cat", "  "), "empty"),
        (lambda s: s.rename("cat", 7), "name of a class"),
        (lambda s: s.merge(["cat"], "pet"), "at least two"),
        (lambda s: s.merge(list(NAMES), "animal"), "at least 2"),
        (lambda s: s.merge(["cat", "dog"], "FOX"), "fox"),
        (lambda s: s.add("cat"), "text encoder"),
        (lambda s: s.add("bear"), "text encoder"),
        (lambda s: s.rename("cat", "d\x1b[31mog"), "not text"),
        (lambda s: s.rename("cat", "dog\u200b"), "look the same"),
        (lambda s: s.rename("cat", "\ud800"), "not text"),
        (lambda s: s.name_group(99_999, "cat", except_=[0]), "group"),
        (lambda s: s.describe("cat", ["a cat"]), "text encoder"),
        (lambda s: s.suggest(0), "at least 1"),
        (lambda s: s.adapt("capp"), "capp"),
        (lambda s: s.save(), "folder"),
    ],
)
def test_what_cannot_be_done_is_told_and_not_recorded(world: tuple[Session, Ints], call: object, words: str) -> None:
    session, _ = world
    with pytest.raises(captune.CaptuneError, match=words):
        call(session)  # type: ignore[operator]
    assert len(session.corrections) == 0


def test_names_of_other_people_that_cannot_be_used_are_told_and_left_out(
    world: tuple[Session, Ints], tmp_path: Path
) -> None:
    session, _ = world
    (tmp_path / "theirs.jsonl").write_bytes(Correction("rename", "d\x1b[31mog", names=("cat",)).line())
    theirs = Corrections(tmp_path / "theirs.jsonl", "ben")
    theirs.add("rename", "dog\u200b", names=("cat",))
    for name in NAMES[1:]:
        theirs.add("remove", name)
    theirs.add("label", "cat", images=("nowhere.png",))
    change = session.label([tmp_path / "theirs.jsonl"])
    assert session.names == NAMES[:2][:1] + NAMES[-1:]  # two classes are left
    told = "\n".join(change.notes)
    assert all(words in told for words in ("not text", "look the same", "2 class names", "nowhere.png"))
    assert "\x1b" not in told


def test_decomposed_names_are_the_same_class() -> None:
    images, texts, _ = make_world()
    session = captune.open_session(
        images, captune.ClassTexts(("caf\xe9", *NAMES[1:]), texts.vectors, 20.0), person="anna"
    )
    session.label(0, "cafe\u0301")
    assert session.answers.used()[session.images.name(0)].label == "caf\xe9"


def test_arguments_that_a_session_has_no_use_for_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    images, texts, _ = make_world()
    captune.open_session(images, texts, quiet=True)
    assert capsys.readouterr().err == ""
    with pytest.raises(InputError, match=r"no argument 'out'.*session\.save"):
        captune.open_session(images, texts, out="run")
