"""The run folder: its content, errors, and how an output folder is claimed before a run starts."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from models import tiny_clip
from toys import write_images

import captune
from captune.core.errors import CaptuneError, RunFolderError
from captune.core.files import NEW
from captune.results.image_classifier import load
from captune.results.run import Run
from captune.results.run_folder import CARD, CHECKPOINTS, LOCK, claim_folder, read_run_card
from faults.wholeness import result_of

HOLDER = """
import sys, time
from captune.results.run_folder import claim_folder
with claim_folder(sys.argv[1], overwrite=False):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    base = tmp_path_factory.mktemp("run")
    photos = write_images(base / "photos", 4)
    (photos / "002.png").write_bytes(b"")
    backbone = f"hf:{tiny_clip(base / 'clip')}"
    short = {"method": "cap", "epochs": 1, "iterations": 2, "workers": 0, "quiet": True}
    run = captune.adapt(photos, ["cat", "dog"], backbone=backbone, out=base / "run", cache=str(base / "cache"), **short)
    return base, run


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_folder_holds_everything(made: tuple[Path, Any]) -> None:
    base, run = made
    folder = base / "run"
    expected = {"classifier", "predictions.csv", "run.json", "skipped.csv", "settings.yaml"}
    assert expected <= {path.name for path in folder.iterdir()}
    predicted = rows(folder / "predictions.csv")
    assert [row["path"] for row in predicted] == ["000.png", "001.png", "003.png"]
    assert [row["label"] for row in predicted] == [run.classifier.names[label] for label in run.predictions.labels]
    assert [float(row["confidence"]) for row in predicted] == pytest.approx(run.predictions.confidence, abs=1e-6)
    assert rows(folder / "skipped.csv") == [{"path": "002.png", "reason": "the file is empty"}]
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    assert settings.pop("images") == str(base / "photos")
    assert settings.pop("classes") == ["cat", "dog"]
    assert settings == dict(run.settings)
    assert settings["method"] == "cap"


def test_the_card_records_versions_seed_and_fingerprints(made: tuple[Path, Any]) -> None:
    base, run = made
    card = read_run_card(base / "run")
    assert (card["n_images"], card["n_skipped"], card["classes"]) == (4, 1, ["cat", "dog"])
    environment = card["environment"]
    assert environment["seed"] == 0
    assert environment["data_fingerprint"] == run.images.fingerprint
    assert environment["backbone_fingerprint"] == run.classifier.backbone.fingerprint()
    assert environment["versions"]["captune"] == captune.__version__


def test_a_run_of_an_older_version_has_fewer_columns(made: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(made[0] / "run", tmp_path / "run")
    old = [",".join(list(row.values())[:3]) for row in rows(tmp_path / "run" / "predictions.csv")]
    (tmp_path / "run" / "predictions.csv").write_text("\n".join(["path,label,confidence", *old]) + "\n")
    run = Run.read(tmp_path / "run")
    assert run.labels.tolist() == made[1].predictions.labels.tolist()
    assert run.fits is None


def test_a_run_or_its_classifier_is_loaded(made: tuple[Path, Any]) -> None:
    base, run = made
    photo = base / "photos" / "000.png"
    for folder in (base / "run", str(base / "run"), base / "run" / "classifier"):
        assert captune.load(folder).predict([photo]) == run.classifier.predict([photo])


def test_a_run_stays_until_the_new_one_is_complete(
    made: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = made
    run.save(tmp_path)
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "model.onnx").write_bytes(b"of the old run")
    before = result_of(tmp_path)

    def fail(self: object, folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(run.classifier), "save", fail)
        with pytest.raises(KeyboardInterrupt):
            run.save(tmp_path, overwrite=True)
    assert result_of(tmp_path) == before
    assert not (tmp_path / NEW).exists()
    run.save(tmp_path, overwrite=True)
    assert not (tmp_path / "exports").exists()


def test_a_run_on_a_full_disk_keeps_the_one_it_should_replace(made: tuple[Path, Any], tmp_path: Path) -> None:
    base, _ = made
    words = ["adapt", base / "photos", "--classes", "cat,dog", "--method", "zero_shot", "--workers", "0"]
    words += ["--backbone", f"hf:{base / 'clip'}", "--set", f"cache={base / 'cache'}", "--out", tmp_path / "run"]
    command = " ".join(shlex.quote(str(word)) for word in (sys.executable, "-m", "captune.cli", *words))
    assert subprocess.run(command, shell=True, capture_output=True, check=False).returncode == 0
    before = result_of(tmp_path / "run")
    done = subprocess.run(
        f"ulimit -f 1; {command} --overwrite", shell=True, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "cannot be written: File too large" in done.stderr
    assert result_of(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ("{", CARD),
        ("[]", "captune-run"),
        ('{"format": "captune-run", "version": 99}', "99"),
        ('{"format": "captune-run"}', "None"),
        (None, CARD),
    ],
)
def test_a_wrong_folder_is_one_clear_error(tmp_path: Path, content: str | None, value: str) -> None:
    if content is not None:
        (tmp_path / CARD).write_text(content)
    with pytest.raises(RunFolderError, match=value):
        load(tmp_path)


def claim(folder: Path, overwrite: bool = False, resume: bool = False) -> Path:
    with claim_folder(folder, overwrite, resume) as target:
        assert (target / LOCK).is_file()
    assert not (folder / LOCK).exists()
    return target


def test_a_folder_is_claimed_only_when_nothing_is_lost(tmp_path: Path) -> None:
    assert claim(tmp_path / "new" / "run").is_dir()
    assert claim(tmp_path / "new" / "run").is_dir()  # still empty
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(RunFolderError):
            claim(tmp_path / "photos", overwrite)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["a.jpg"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(CaptuneError):
        claim(tmp_path / "file", overwrite=True)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / CARD).write_text(json.dumps({}))
    with pytest.raises(RunFolderError, match="overwrite=True"):
        claim(tmp_path / "old")
    assert claim(tmp_path / "old", overwrite=True) == tmp_path / "old"
    assert [path.name for path in (tmp_path / "old").iterdir()] == [CARD]
    with pytest.raises(CaptuneError):
        claim(tmp_path / ("x" * 300))
    with pytest.raises(CaptuneError):
        claim(tmp_path / "file" / "below")


def test_an_interrupted_run_is_resumed_or_started_anew(tmp_path: Path) -> None:
    ours = tmp_path / CHECKPOINTS / f"000-00001-000002-{'a' * 32}.safetensors"
    ours.parent.mkdir()
    ours.write_text("x")
    leftover = tmp_path / CHECKPOINTS / ".captune-x.part"
    leftover.write_text("a kill in the middle of a write")
    with pytest.raises(RunFolderError, match="resume=True"):
        claim(tmp_path)
    claim(tmp_path, resume=True)
    assert ours.is_file()
    assert not leftover.exists()
    claim(tmp_path, overwrite=True)
    assert not ours.exists()
    (tmp_path / CARD).write_text("{}")
    with pytest.raises(RunFolderError):
        claim(tmp_path, resume=True)


def test_a_kill_before_the_first_checkpoint_or_while_results_are_written_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("process 1 on a machine that lost power")
    claim(tmp_path)  # nothing was written yet: as good as empty
    (tmp_path / LOCK).touch()
    (tmp_path / "predictions.csv").write_text("half of a run")
    with pytest.raises(RunFolderError, match=r"resume=True.*overwrite=True"):
        claim(tmp_path)
    assert (tmp_path / LOCK).exists()
    claim(tmp_path, resume=True)
    (tmp_path / LOCK).touch()
    (tmp_path / CARD).write_text("an old run that was being replaced")
    claim(tmp_path, resume=True)
    (tmp_path / LOCK).touch()
    with (
        pytest.raises(RunFolderError, match="overwrite=True"),
        claim_folder(tmp_path, False, None),
    ):
        pass


def test_an_error_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), claim_folder(tmp_path / "new", overwrite=False):
        raise ZeroDivisionError
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "new" / CARD).write_text("{}")
    with pytest.raises(ZeroDivisionError), claim_folder(tmp_path / "new", overwrite=True):
        raise ZeroDivisionError
    assert [path.name for path in (tmp_path / "new").iterdir()] == [CARD]
    with pytest.raises(ZeroDivisionError), claim_folder(tmp_path / "part", overwrite=False):  # noqa: PT012
        (tmp_path / "part" / "predictions.csv").write_text("")
        raise ZeroDivisionError
    assert (tmp_path / "part" / LOCK).exists()  # what was begun can be resumed


def test_checkpoints_of_others_are_never_deleted(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS).mkdir()
    (tmp_path / CHECKPOINTS / "model.safetensors").write_text("precious")
    with pytest.raises(RunFolderError):
        claim(tmp_path, overwrite=True)
    (tmp_path / CARD).write_text("{}")
    claim(tmp_path, overwrite=True)
    assert (tmp_path / CHECKPOINTS / "model.safetensors").is_file()


def test_only_one_run_writes_at_a_time(tmp_path: Path) -> None:
    with (
        claim_folder(tmp_path, overwrite=False),
        pytest.raises(RunFolderError),
        claim_folder(tmp_path, overwrite=True),
    ):
        pass
    other = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RunFolderError, match=str(other.pid)):
            claim(tmp_path, overwrite=True)
    finally:
        other.kill()
        other.communicate()
    claim(tmp_path)  # the system took the lock back
