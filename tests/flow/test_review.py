"""A person's minute on the command line: suggest, label, estimate, and what files they leave."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import captune
from captune.cli import main
from captune.results.run_folder import read_run_card
from captune.review.corrections import Corrections

NAMES = ("cat", "dog", "fox", "owl")
LABELS = np.arange(80) % 4


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run on embeddings whose first two names are exchanged."""
    folder = tmp_path_factory.mktemp("review")
    generator = np.random.default_rng(0)
    centers = np.linalg.qr(generator.normal(size=(16, 16)))[0][:4]
    images = centers[LABELS] + 0.1 * generator.normal(size=(80, 16))
    texts = centers[[1, 0, 2, 3]] + 0.2 * generator.normal(size=(4, 16))
    np.savez(folder / "world.npz", vectors=images, texts=texts, names=np.array(NAMES), logit_scale=20.0)
    source, out = str(folder / "world.npz"), str(folder / "run")
    assert main(["adapt", f"{source}:vectors", "--classes", source, "--method", "transductive", "--out", out]) == 0
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def truth(image: str) -> str:
    return NAMES[LABELS[int(image.removeprefix("image-"))]]


def fill(path: Path) -> list[dict[str, str]]:
    """Answer every row of a table as a person would, the first with the sign for `right` if it is."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["answer"] = "=" if row["label"] == truth(row["path"]) else truth(row["path"])
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows


def accuracy(run: Path) -> float:
    with (run / "predictions.csv").open(newline="") as file:
        return float(np.mean([row["label"] == truth(row["path"]) for row in csv.DictReader(file)]))


def test_from_a_run_to_a_better_one(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, looks = accuracy(run), tmp_path / "looks.csv"
    assert main(["suggest", str(run), "--count", "12", "--checks", "0.25", "--out", str(looks)]) == 0
    assert f"captune label {run} --from {looks}" in capsys.readouterr().out
    rows = fill(looks)
    assert len({row["path"] for row in rows}) == 12
    assert sum(row["kind"] == "check" for row in rows) == 3
    assert main(["label", str(run), "--from", str(looks), "--person", "anna"]) == 0
    told = capsys.readouterr().out
    assert "predictions changed" in told
    assert "from 3 checked images" in told
    assert accuracy(run) > max(0.95, before + 0.2)
    said = list(Corrections(run / "corrections.jsonl"))
    assert {entry.person for entry in said} == {"anna"}
    assert sum(entry.suggestion == "check" for entry in said) == 3
    card = read_run_card(run)
    assert card["review"]["accuracy"]["n_checks"] == 3
    assert card["review"]["accuracy"]["sentence"] in (run / "report.html").read_text(encoding="utf-8")
    captune.load(run)


def test_an_estimate_from_checks(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(run)]) == 0
    assert "check 10 images" in capsys.readouterr().out
    assert "Not verified: whether the names are right" in (run / "report.html").read_text(encoding="utf-8")
    before = (run / "predictions.csv").read_bytes()
    checks = tmp_path / "checks.csv"
    assert main(["estimate", str(run), "--count", "20", "--out", str(checks)]) == 0
    rows = fill(checks)
    capsys.readouterr()
    assert main(["estimate", str(run), "--from", str(checks), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_checks"] == 20
    assert found["n_correct"] == sum(row["answer"] == "=" for row in rows)
    assert (run / "predictions.csv").read_bytes() == before
    assert read_run_card(run)["review"]["accuracy"] == found


def test_a_group_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "groups.csv"
    assert main(["suggest", str(run), "--groups", "--count", "3", "--out", str(table)]) == 0
    with table.open(newline="") as file:
        first = next(csv.DictReader(file))
    examples = first["examples"].split("; ")
    name = truth(examples[0])
    assert main(["label", str(run), "--group", first["group"], name, "--except", examples[-1]]) == 0
    said = list(Corrections(run / "corrections.jsonl"))
    assert [(entry.kind, entry.label, entry.group) for entry in said] == [
        ("not", name, int(first["group"])),
        ("label", name, int(first["group"])),
    ]
    assert examples[-1] not in said[1].images
    assert main(["label", str(run), "--undo"]) == 0
    assert Corrections(run / "corrections.jsonl").active() == []


def test_accept_and_update_are_told_where_the_images_are_now(
    run: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = json.loads((run / "run.json").read_text(encoding="utf-8"))
    card["sources"]["images"] = str(tmp_path / "gone.npz:vectors")
    (run / "run.json").write_text(json.dumps(card), encoding="utf-8")
    now = f"{finished.parent / 'world.npz'}:vectors"
    for command, told in (("accept", "must be checked"), ("update", "0 new images")):
        assert main([command, str(run)]) == 2
        assert "--images" in capsys.readouterr().err
        assert main([command, str(run), "--images", now]) == 0
        assert told in capsys.readouterr().out


def test_labels_travel_as_csv_and_label_studio(run: Path, tmp_path: Path) -> None:
    assert main(["label", str(run), "image-00", "image-04", "cat"]) == 0
    assert main(["label", str(run), "--person", "anna", "image-01", "dog"]) == 0  # flags may stand anywhere
    assert main(["label", str(run), "--export", str(tmp_path / "labels.csv")]) == 0
    before = {image: answer.label for image, answer in captune.open_session(run).answers.used().items()}
    assert before == {"image-00": "cat", "image-04": "cat", "image-01": "dog"}
    tasks = [
        {
            "data": {"image": f"/data/local-files/?d={image}"},
            "annotations": [{"result": [{"type": "choices", "value": {"choices": [label]}}]}],
        }
        for image, label in before.items()
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks), encoding="utf-8")
    for name in ("labels.csv", "tasks.json"):
        (run / "corrections.jsonl").unlink()
        assert main(["label", str(run), "--from", str(tmp_path / name)]) == 0
        assert {image: answer.label for image, answer in captune.open_session(run).answers.used().items()} == before


def test_classes_are_renamed_and_merged_and_people_joined(run: Path, tmp_path: Path) -> None:
    assert main(["label", str(run), "image-02", "fox", "--person", "anna"]) == 0
    other = Corrections(tmp_path / "ben.jsonl", "ben")
    other.add("label", "owl", images=("image-03",))
    command = ["label", str(run), "--rename", "cat=kitten", "--merge", "wild=fox,owl"]
    assert main([*command[:2], "--corrections", str(tmp_path / "ben.jsonl")]) == 0
    assert main(command) == 0
    session = captune.open_session(run)
    assert session.names == ("kitten", "dog", "wild")
    assert {answer.label for answer in session.answers.used().values()} == {"wild"}
    assert read_run_card(run)["classes"] == ["kitten", "dog", "wild"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["label", "RUN", "image-00", "cats"], "'cat'"),
        (["label", "RUN", "image-00", "blue whale"], "--add 'blue whale'"),
        (["label", "RUN", "--remove", "whale"], "cat, dog, fox"),
        (["label", "RUN", "cat"], "'cat'"),
        (["label", "RUN", "image-99", "cat"], "image-99"),
        (["label", "RUN", "--group", "cat", "7"], "--group"),
        (["label", "RUN", "--group", "700", "cat"], "700"),
        (["label", "RUN", "--from", "nowhere.csv"], "nowhere.csv"),
        (["label", "RUN", "--rename", "cat"], "old=new"),
        (["label", "RUN", "--undo"], "to undo"),
        (["label", "nowhere", "image-00", "cat"], "'nowhere'"),
        (["suggest", "RUN", "--count", "0"], "--count"),
        (["suggest", "RUN", "--checks", "2"], "--checks"),
        (["estimate", "RUN", "--count", "5"], "--out"),
    ],
)
def test_bad_input_is_told_and_changes_nothing(
    run: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main([str(run) if word == "RUN" else word for word in words]) == 2
    assert expected in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_filled_table_with_mistakes_lists_them_all(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "looks.csv"
    table.write_text("path,label,answer\nimage-00,cat,=\nimage-77x,cat,dog\nimage-01,cat,dogg\n", encoding="utf-8")
    assert main(["label", str(run), "--from", str(table)]) == 2
    told = capsys.readouterr().err
    assert "image-77x" in told
    assert "'dog'" in told
    assert not (run / "corrections.jsonl").exists()


def test_labels_with_old_names_can_be_used(finished: Path, tmp_path: Path) -> None:
    source = str(finished.parent / "world.npz")
    labels = tmp_path / "labels.csv"
    rows = [f"image-{i:02d},{('mouser', 'dog', 'fox', 'owl')[LABELS[i]]}" for i in range(8)]
    labels.write_text("path,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    command = ["adapt", f"{source}:vectors", "--classes", source, "--method", "transductive", "--labels", str(labels)]
    assert main([*command, "--out", str(tmp_path / "a")]) == 2
    assert main([*command, "--rename", "mouser=cat", "--merge", "wild=fox,owl", "--out", str(tmp_path / "b")]) == 0
    assert read_run_card(tmp_path / "b")["classes"] == ["cat", "dog", "wild"]
    session = captune.open_session(tmp_path / "b")
    assert sorted({answer.label for answer in session.answers.used().values()}) == ["cat", "dog", "wild"]
