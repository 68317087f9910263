"""Output folders: nothing of value is replaced, a kill leaves what can be resumed, and one run at a time writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from captune.core.errors import CaptuneError, RunFolderError
from captune.results.claim import LOCK, claim_folder
from captune.results.run import CARD, CHECKPOINTS

HOLDER = """
import sys, time
from captune.results.claim import claim_folder
with claim_folder(sys.argv[1], overwrite=False):
    print("held", flush=True)
    time.sleep(60)
"""


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
        with pytest.raises(RunFolderError, match="holds no run"):
            claim(tmp_path / "photos", overwrite)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["a.jpg"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(CaptuneError, match="choose another --out"):
        claim(tmp_path / "file", overwrite=True)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / CARD).write_text(json.dumps({}))
    with pytest.raises(RunFolderError, match="pass --overwrite"):
        claim(tmp_path / "old")
    assert claim(tmp_path / "old", overwrite=True) == tmp_path / "old"
    assert [path.name for path in (tmp_path / "old").iterdir()] == [CARD]
    with pytest.raises(CaptuneError, match="cannot be written"):
        claim(tmp_path / ("x" * 300))
    with pytest.raises(CaptuneError, match="cannot be written"):
        claim(tmp_path / "file" / "below")


def test_an_interrupted_run_is_resumed_or_started_anew(tmp_path: Path) -> None:
    ours = tmp_path / CHECKPOINTS / f"000-00001-000002-{'a' * 24}.safetensors"
    ours.parent.mkdir()
    ours.write_text("x")
    leftover = tmp_path / CHECKPOINTS / ".captune-x.part"
    leftover.write_text("a kill in the middle of a write")
    with pytest.raises(RunFolderError, match="pass --resume to go on"):
        claim(tmp_path)
    claim(tmp_path, resume=True)
    assert ours.is_file()
    assert not leftover.exists()
    claim(tmp_path, overwrite=True)
    assert not ours.exists()
    (tmp_path / CARD).write_text("{}")
    with pytest.raises(RunFolderError, match="nothing to resume"):
        claim(tmp_path, resume=True)


def test_a_kill_before_the_first_checkpoint_or_while_results_are_written_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("process 1 on a machine that lost power")
    claim(tmp_path)  # nothing was written yet: as good as empty
    (tmp_path / LOCK).touch()
    (tmp_path / "predictions.csv").write_text("half of a run")
    with pytest.raises(RunFolderError, match="interrupted run: pass --resume to go on, --overwrite to start anew"):
        claim(tmp_path)
    assert (tmp_path / LOCK).exists()
    claim(tmp_path, resume=True)
    (tmp_path / LOCK).touch()
    (tmp_path / CARD).write_text("an old run that was being replaced")
    claim(tmp_path, resume=True)
    (tmp_path / LOCK).touch()
    with (
        pytest.raises(RunFolderError, match="run: pass --overwrite to start anew"),
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
    with pytest.raises(RunFolderError, match="holds no run: choose another"):
        claim(tmp_path, overwrite=True)
    (tmp_path / CARD).write_text("{}")
    claim(tmp_path, overwrite=True)
    assert (tmp_path / CHECKPOINTS / "model.safetensors").is_file()


def test_only_one_run_writes_at_a_time(tmp_path: Path) -> None:
    with (
        claim_folder(tmp_path, overwrite=False),
        pytest.raises(RunFolderError, match="Another captune is writing"),
        claim_folder(tmp_path, overwrite=True),
    ):
        pass
    other = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RunFolderError, match=rf"Another captune .* \(process {other.pid} on .*\)"):
            claim(tmp_path, overwrite=True)
    finally:
        other.kill()
        other.communicate()
    claim(tmp_path)  # the system took the lock back
