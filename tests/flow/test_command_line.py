"""The command line from end to end on a tiny CLIP: adapt, predict, evaluate, list, help."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toys import write_images

import captune as package
from captune.commands.output import ROLES, list_
from captune.core import registry
from captune.core.settings import RunSettings, explain
from captune.methods.cap import Cap

SHORT = ("--method", "cap", "--set", "epochs=1", "--set", "iterations=2")


@pytest.fixture
def run(captune: Any, photos: Path, backbone: str, tmp_path: Path) -> Path:
    words = ("--classes", photos, "--backbone", backbone, "--out", tmp_path / "run", "--workers", 0)
    answer = captune("adapt", photos, *words, *SHORT)
    assert answer.code == 0, answer.err
    return tmp_path / "run"


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_adapt_says_what_came_out(captune: Any, photos: Path, backbone: str, tmp_path: Path) -> None:
    words = ("--classes", "cat,red dog", "--backbone", backbone, "--out", tmp_path / "run", "--seed", 3)
    answer = captune("adapt", photos, *words, *SHORT, "--set", "batch_size=2", "--set", "workers=0")
    assert answer.code == 0
    assert all(words in answer.out for words in ("6 images", "2 classes", "cap", str(tmp_path / "run")))
    card = json.loads((tmp_path / "run" / "run.json").read_text())
    assert card["settings"]["batch_size"] == 2
    assert card["environment"]["seed"] == 3


def test_settings_come_from_the_file_then_flags_then_overrides(
    captune: Any, photos: Path, backbone: str, tmp_path: Path
) -> None:
    config = tmp_path / "s.yaml"
    config.write_text("seed: 1\nbatch_size: 3\nworkers: 0\ntemplate: 'the {}'\n")
    words = ("--classes", photos, "--backbone", backbone, "--config", config, "--out", tmp_path / "run")
    assert captune("adapt", photos, *words, *SHORT, "--seed", 2, "--set", "template=a {}").code == 0
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert (settings["seed"], settings["batch_size"], settings["template"]) == (2, 3, "a {}")


def test_scientific_names_from_a_table(captune: Any, photos: Path, backbone: str, tmp_path: Path) -> None:
    (tmp_path / "animals.csv").write_text(
        "name,scientific_name,common_name\ncat,Felis catus,house cat\nred dog,Canis familiaris,dog\n"
    )
    template = "a photo of {scientific_name} with common name {common_name}."
    words = ("--classes", tmp_path / "animals.csv", "--backbone", backbone, "--template")
    found = captune("adapt", photos, *words, template, "--out", tmp_path / "run", "--method", "zero_shot")
    assert found.code == 0, found.err
    classifier = package.load(tmp_path / "run")
    assert classifier.names == ("cat", "red dog")
    assert classifier.vocabulary.texts(0) == ("a photo of Felis catus with common name house cat.",)
    again = captune("adapt", "--config", tmp_path / "run" / "settings.yaml", "--out", tmp_path / "again")
    assert again.code == 0, again.err
    first, second = (tmp_path / run / "predictions.csv" for run in ("run", "again"))
    assert first.read_bytes() == second.read_bytes()
    session = package.open_session(tmp_path / "run")
    session.add("bird")
    known = session.engine.vocabulary(session.answers)
    assert known.texts(0) == classifier.vocabulary.texts(0)
    assert known.texts(2) == ("a photo of bird with common name bird.",)
    assert len(session.find(words="a small animal")) > 0
    wrong = captune("adapt", photos, *words, "{} of the family {family}", "--out", tmp_path / "x")
    assert wrong.code == 2
    assert "'family'" in wrong.err


def test_a_whole_project_is_one_file(
    captune: Any, photos: Path, backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(photos, project / "photos")
    (project / "classes.txt").write_text("cat\nred dog\n")
    (project / "labels.csv").write_text("path,label\nphotos/cat/000.jpg,cat\n")
    (project / "words.yaml").write_text("cat: [an animal]\nred dog: [an animal in red]\n")
    (project / "project.yaml").write_text(
        "images: photos\nclasses: classes.txt\nlabels: labels.csv\nout: run\ndescriber: file:words.yaml\n"
        f"backbone: {backbone}\nworkers: 0\nmethod: zero_shot\ndescribe: all\n"
    )
    monkeypatch.chdir(elsewhere)  # paths in the file are relative to the file
    words = ("--config", Path("..") / "project" / "project.yaml")
    answer = captune("adapt", *words)
    assert answer.code == 0, answer.err
    card = json.loads((project / "run" / "run.json").read_text())
    assert (card["n_images"], card["classes"]) == (6, ["cat", "red dog"])
    audited = captune("audit", *words, "--labels", "folders", "--set", "out=audited")
    assert audited.code == 0, audited.err
    assert (elsewhere / "audited" / "run.json").is_file()  # the command line wins, and is relative to the shell
    again = captune("adapt", "--config", project / "run" / "settings.yaml", "--out", "again")
    assert again.code == 0, again.err
    assert (elsewhere / "again" / "predictions.csv").read_bytes() == (project / "run" / "predictions.csv").read_bytes()


@pytest.mark.parametrize("command", ["adapt", "audit"])
def test_a_run_without_images_or_classes_says_where_they_may_stand(captune: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "half.yaml").write_text("images: photos\n")
    for words, missing in (((), ("images", "classes")), (("--config", tmp_path / "half.yaml"), ("--classes",))):
        answer = captune(command, *words)
        assert answer.code == 2
        assert all(word in answer.err for word in (*missing, "--config"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("classes: 5", "got 5"),
        ("classes: true", "got True"),
        ("classes: ''", "''"),
        ("images: ''", "images"),
        ("out: 5", "out = 5"),
        ("out: [run]", "out = ['run']"),
        ('out: "a\\0b"', r"a\x00b"),
        ("overwrite: true", "--overwrite"),
        ("progress: false", "'progress'"),
        ("out: ~no-such-user-here/run\nseed: -1", "seed = -1"),
    ],
)
def test_values_of_a_project_that_cannot_be_meant(
    captune: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, words: str
) -> None:
    monkeypatch.chdir(photos)  # where an empty path would find images and classes
    lines = {"images": f"images: {photos}", "classes": "classes: cat,dog", content.partition(":")[0]: content}
    (tmp_path / "project.yaml").write_text("\n".join(lines.values()))
    answer = captune("adapt", "--config", tmp_path / "project.yaml")
    assert answer.code == 2, answer.err
    assert words in answer.err


def test_the_default_run_folder_is_named_after_the_method(
    captune: Any, photos: Path, backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("adapt", photos, "--classes", photos, "--backbone", backbone, "--workers", 0, *SHORT)
    assert captune(*words).code == 0
    assert (tmp_path / "captune-cap" / "run.json").is_file()
    again = captune(*words)
    assert again.code == 2
    assert "--overwrite" in again.err
    assert captune(*words, "--overwrite").code == 0


def test_labels_take_images_out_of_the_unlabeled_ones(
    captune: Any, photos: Path, backbone: str, tmp_path: Path
) -> None:
    (tmp_path / "labels.csv").write_text("path,label\ncat/000.jpg,cat\n")
    words = ("--classes", photos, "--backbone", backbone, "--labels", tmp_path / "labels.csv", "--workers", 0)
    assert captune("adapt", photos, *words, *SHORT, "--out", tmp_path / "run").code == 0


def test_predict_prints_a_table(captune: Any, run: Path, photos: Path) -> None:
    answer = captune("predict", run, photos, "--top-k", 5, "--workers", 0)
    assert answer.code == 0
    rows = table(answer.out)
    assert list(rows[0]) == ["path", "label", "confidence", "label_2", "confidence_2"]
    assert rows[0]["path"] == "cat/000.jpg"
    assert all(float(row["confidence"]) + float(row["confidence_2"]) == pytest.approx(1, abs=1e-5) for row in rows)
    saved = table((run / "predictions.csv").read_text())
    assert [row["label"] for row in saved] == [row["label"] for row in rows]


def test_predict_writes_a_file_and_names_unreadable_images(captune: Any, run: Path, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "new", 2)
    (folder / "bad.jpg").write_bytes(b"text")
    answer = captune("predict", run, folder, "--out", tmp_path / "p" / "out.csv", "--workers", 0)
    assert (answer.code, answer.out) == (0, "")
    assert "bad.jpg" in answer.err
    assert len(table((tmp_path / "p" / "out.csv").read_text())) == 2


def test_predict_takes_one_image(captune: Any, run: Path, photos: Path) -> None:
    answer = captune("predict", run, photos / "cat" / "001.jpg", "--workers", 0)
    assert [row["path"] for row in table(answer.out)] == ["001.jpg"]


def test_evaluate_prints_json_that_agrees_with_the_predictions(captune: Any, run: Path, photos: Path) -> None:
    answer = captune("evaluate", run, photos, "--labels", "folders", "--json", "--workers", 0)
    assert answer.code == 0
    measured = json.loads(answer.out)
    saved = table((run / "predictions.csv").read_text())
    right = [row["path"].startswith(row["label"]) for row in saved]
    assert measured["accuracy"] == pytest.approx(sum(right) / 6)
    assert measured["n_images"] == 6
    assert measured["n_skipped"] == 0
    assert measured["classes"] == ["cat", "red dog"]


def test_evaluate_prints_a_table_and_takes_a_csv(captune: Any, run: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\ncat/000.jpg,cat\nred dog/001.png,red dog\n")
    answer = captune("evaluate", run, photos, "--labels", tmp_path / "labels.csv", "--workers", 0)
    assert answer.code == 0
    rows = [line.split() for line in answer.out.splitlines()]
    assert ["images", "2"] in rows
    assert {"accuracy", "never", "red"} <= {row[0] for row in rows}


def test_class_names_that_look_like_markup_are_printed_as_they_are(captune: Any, backbone: str, tmp_path: Path) -> None:
    for name in ("[bold]", "b[/red]"):
        write_images(tmp_path / "photos" / name.replace("/", "∕"), 1, seed=len(name))
    names = [path.name for path in sorted((tmp_path / "photos").iterdir())]
    (tmp_path / "names.txt").write_text("\n".join([*names, "c[/red]"]))
    words = ("--classes", tmp_path / "names.txt", "--backbone", backbone, "--out", tmp_path / "run", "--workers", 0)
    assert captune("adapt", tmp_path / "photos", *words, *SHORT).code == 0
    answer = captune("evaluate", tmp_path / "run", tmp_path / "photos", "--labels", "folders", "--workers", 0)
    assert answer.code == 0
    assert "[bold]" in answer.out
    assert "c[/red]" in answer.out


def test_list_shows_every_role(captune: Any) -> None:
    for role in ROLES:
        assert captune("list", role).code == 0
    assert registry.summary("methods", "zero_shot").split()[0] in captune("list", "methods").out
    everything = captune("list").out.split()
    assert {"methods:", "zero_shot", "backbones:", "embedded", "suites:", "patterns"} <= set(everything)
    assert captune("list", "--data", "x").code == 2


def test_version_and_help(captune: Any) -> None:
    assert captune("--version").out == f"captune {package.__version__}\n"
    assert "COMMAND" in captune("--help").out
    settings = captune("adapt", "--help-settings", "zero_shot").out
    assert "batch_size = 32" in settings
    assert explain(RunSettings)["batch_size"] in settings
    for words in (("--help-settings", "cap", "--preset", "quick"), ("--preset", "quick", "--help-settings", "cap")):
        shown = captune("adapt", *words).out
        for name, value in Cap.presets["quick"].items():
            assert f"\n  {name} = {value!r}" in shown
        assert f"(default: {Cap.Settings().tuner!r})" in shown
    unknown = captune("adapt", "--help-settings", "cap", "--preset", "quik")
    assert (unknown.code, "'quick'" in unknown.err) == (2, True)
    wrong = captune("adapt", "--help-settings", "zeroshot")
    assert (wrong.code, "'zero_shot'" in wrong.err) == (2, True)


@pytest.mark.parametrize("words", [(), ("adpat",), ("predict", "run"), ("adapt", "x", "--clas", "a,b")])
def test_wrong_usage_ends_with_2(captune: Any, words: tuple[str, ...]) -> None:
    answer = captune(*words)
    assert answer.code == 2
    assert "usage: captune" in answer.err


def test_an_interruption_and_a_defect_have_their_own_codes(captune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(options: object) -> None:
        raise KeyboardInterrupt

    def fail(options: object) -> None:
        raise RuntimeError("a wheel came off")

    monkeypatch.setattr(list_, "run", interrupt)
    assert captune("list", "methods").code == 130
    monkeypatch.setattr(list_, "run", fail)
    answer = captune("list", "methods")
    assert answer.code == 1
    assert "a wheel came off" in answer.err
    assert "CAPTUNE_DEBUG=1" in answer.err
    monkeypatch.setenv("CAPTUNE_DEBUG", "1")
    with pytest.raises(RuntimeError):
        captune("list", "methods")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "captune", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"captune {package.__version__}\n"


def test_a_closed_pipe_is_no_error() -> None:
    words = f"{sys.executable} -m captune.cli list methods | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
