"""Finding images: by words, by an example, by what is known, and where people disagree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import captune
from captune.cli import main
from captune.core.errors import InputError
from captune.embeddings.similarity import find_outliers_and_duplicates
from captune.review.corrections import Correction
from captune.review.opening import open_session
from captune.review.session import Session
from captune.review.suggestions import SECOND_OPINION, Found, disagreements
from captune.world import write_world

COPIED = "zebra/copy.png"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("found") / "images"
    write_world(folder, 4, seed=3)
    first = sorted((folder / "zebra").iterdir())[0]
    Image.open(first).save(folder / COPIED)
    return folder


@pytest.fixture
def session(photos: Path) -> Session:
    names = sorted(path.name for path in photos.iterdir())
    return open_session(photos, names, backbone="embedded:patterns", workers=0, quiet=True)


def folders(found: list[Found]) -> list[str]:
    return [one.image.split("/")[0] for one in found]


def test_words_and_examples_find_images_that_show_them(session: Session) -> None:
    shares = [folders(session.find(name, count=4)).count(name) / 4 for name in session.names]
    assert np.mean(shares) > 0.4  # one in 24 would be chance
    found = session.find(like=COPIED, count=3)
    assert found[0].image != COPIED
    assert folders(found).count("zebra") >= 2
    assert found[0].similarity >= found[1].similarity >= found[2].similarity
    assert found[0].similarity > 0.99


def test_filters_hold_together(session: Session) -> None:
    label = session.names[0]
    found = session.find(label=label, confidence=(0.2, 0.9), count=1000)
    predicted = session.predictions
    expected = (predicted.labels == 0) & (predicted.confidence >= 0.2) & (predicted.confidence <= 0.9)
    assert sorted(one.position for one in found) == np.flatnonzero(expected).tolist()
    confidences = [one.confidence for one in found]
    assert confidences == sorted(confidences)
    assert COPIED in {one.image for one in session.find(only=["duplicates"], count=1000)}
    session.label(COPIED, "zebra")
    assert COPIED not in {one.image for one in session.find("zebra", only=["unlabeled"], count=1000)}
    session.label(0, captune.NONE)
    assert [one.position for one in session.find(only=[captune.NONE])] == [0]


def test_changed_images_are_those_with_another_class_and_not_those_with_another_name(session: Session) -> None:
    assert session.find(only=["changed"]) == []
    other = next(name for name in session.names if name != session.names[session.predictions.labels[7]])
    session.label(7, other)
    assert 7 in {one.position for one in session.find(only=["changed"], count=1000)}
    before = session.changed().copy()
    session.rename(other, "another name")
    assert np.mean(before == session.changed()) > 0.8


@pytest.mark.parametrize(
    "wrong", [{"only": ["nice"]}, {"label": "no such class"}, {"words": "a", "like": 0}, {"like": "missing.png"}]
)
def test_wrong_questions_are_errors(session: Session, wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        session.find(**wrong)  # type: ignore[arg-type]


def test_the_command_prints_a_table_that_can_be_imported(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "found.csv"
    session.save(run)
    assert main(["find", str(run), "zebra", "--count", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "path,label,confidence,similarity,answer"
    assert len(lines) == 3
    assert lines[1].startswith("zebra/")
    assert main(["find", str(run), "--like", COPIED, "--only", "unlabeled", "--out", str(out)]) == 0
    rows = out.read_text(encoding="utf-8").splitlines()
    filled = [rows[0], rows[1] + "zebra"]
    out.write_text("\n".join(filled) + "\n", encoding="utf-8")
    assert main(["label", str(run), "--from", str(out)]) == 0
    assert main(["find", str(run), "--only", "sunny"]) == 2


def test_images_unlike_all_others_are_outliers() -> None:
    rng = np.random.default_rng(0)
    vectors = np.eye(16, dtype=np.float32)[np.arange(2000) % 4] + rng.normal(0, 0.1, (2000, 16)).astype(np.float32)
    vectors[[5, 6]] = -rng.normal(1, 0.5, (2, 16))
    vectors[7] = vectors[3] + 0.001
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    outliers, duplicates = find_outliers_and_duplicates(vectors)
    assert outliers[[5, 6]].all()
    assert outliers.mean() < 0.05
    assert duplicates[[3, 7]].all()


def test_people_disagree_until_a_second_opinion() -> None:
    def label(name: str, person: str, suggestion: str = "") -> Correction:
        return Correction("label", name, ("a.png",), person=person, suggestion=suggestion)

    first = [label("cat", "ann"), label("dog", "bob")]
    assert disagreements(first) == {"a.png": {"ann": "cat", "bob": "dog"}}
    assert disagreements([*first, label("cat", "bob")]) == {}
    assert disagreements([*first, label("dog", "eve", SECOND_OPINION)]) == {}
