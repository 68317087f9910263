"""Environments that are not as usual: a sentence and the right exit code, never a bug report."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from toys import write_images

from captune.core.errors import CaptuneError
from captune.core.files import cache_folder

CAPTUNE = f"{shlex.quote(sys.executable)} -m captune.cli"


def shell(command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, shell=True, capture_output=True, check=False)


def test_a_full_disk_behind_the_output_is_told() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("This system has no /dev/full.")
    done = shell(f"{CAPTUNE} list methods > /dev/full")
    assert done.returncode == 2
    assert done.stderr == b"error: The output cannot be read or written: No space left on device.\n"
    assert shell(f"{CAPTUNE} list methods 2> /dev/full").returncode == 0
    assert shell(f"{CAPTUNE} list nothing 2> /dev/full").returncode == 2


def test_messages_that_nobody_can_read_stop_no_run(backbone: str, tmp_path: Path) -> None:
    write_images(tmp_path / "photos", 4)
    words = f"adapt {tmp_path}/photos --classes cat,dog --backbone {backbone} --method zero_shot --workers 0"
    for number, target in enumerate(("2> /dev/full", "2>&1 > /dev/null | true")):
        run = tmp_path / f"run-{number}"
        done = shell(f"{CAPTUNE} {words} --out {run} {target}")
        assert done.returncode == 0, done.stderr
        assert len((run / "predictions.csv").read_text().splitlines()) == 5
        assert (run / "report.html").exists()


def test_closed_streams_are_no_problem(tmp_path: Path) -> None:
    assert shell(f"{CAPTUNE} list methods >&-").returncode == 0
    assert shell(f"{CAPTUNE} list methods <&- >&- 2>&-").returncode == 0
    assert shell(f"{CAPTUNE} report {tmp_path} >&- 2>&-").returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_without_a_home_the_cache_is_a_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(f"uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("CAPTUNE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder().is_absolute()
    assert f"captune-{os.getuid()}" in cache_folder().name


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_temporary_cache_of_somebody_else_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captune.core.files.user_cache_path", lambda *_, **__: Path("~"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("CAPTUNE_CACHE", raising=False)
    assert cache_folder().parent == tmp_path
    (tmp_path / "theirs").mkdir()
    place = tmp_path / f"captune-{os.getuid()}"
    place.symlink_to(tmp_path / "theirs") if kind == "link" else place.write_text("")
    with pytest.raises(CaptuneError, match="another user"):
        cache_folder()


def test_names_that_are_not_utf_8(captune: Any, backbone: str, tmp_path: Path) -> None:
    photos = tmp_path / os.fsdecode(b"caf\xe9")
    write_images(photos / "cat", 2)
    write_images(photos / os.fsdecode(b"d\xf6g"), 2)
    out = tmp_path / os.fsdecode(b"r\xfcn")
    words = ("--backbone", backbone, "--method", "zero_shot", "--workers", "0")
    done = captune("adapt", photos, "--classes", "cat,dog", *words, "--out", out)
    assert done.code == 0, done.err
    assert (out / "report.html").is_file()
    assert r"r\udcfcn" in done.out
    done = captune("predict", out, photos)
    assert done.code == 0, done.err
    assert r"d\xf6g/001.png" in done.out
    done = captune("adapt", photos, "--classes", photos, *words, "--out", tmp_path / "other")
    assert done.code == 2
    assert r"\udcf6" in done.err


def test_names_cannot_control_the_terminal(captune: Any, backbone: str, tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos", 2)
    (photos / "\x1b[2J.png").write_bytes(b"damaged")
    (photos / "\x1b[31m.txt").write_bytes(b"")
    words = ("--backbone", backbone, "--method", "zero_shot", "--workers", "0")
    done = captune("adapt", photos, "--classes", "cat,dog", *words, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    seen = done.out + done.err
    done = captune("predict", tmp_path / "run", photos)
    seen += done.err
    assert r"\x1b[2J.png" in seen
    assert r"\x1b[31m.txt" in seen
    assert "\x1b[2J" not in seen
    assert "\x1b[31m" not in seen
    done = captune("adapt", photos, "--classes", "a\x1b[31m,dog", *words, "--out", tmp_path / "other")
    assert done.code == 2
    assert r"\x1b" in done.err


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux has /dev/shm.")
@pytest.mark.slow
@pytest.mark.parametrize("disk", ["ro", "size=4k"])
def test_without_shared_memory_images_are_decoded_in_one_process(backbone: str, tmp_path: Path, disk: str) -> None:
    photos = write_images(tmp_path / "photos", 40)
    mount = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o {disk} tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*mount, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("Mounting another /dev/shm needs root.")
    words = ["--backbone", backbone, "--method", "zero_shot", "--workers", "2", "--out", str(tmp_path / "run")]
    command = [*mount, sys.executable, "-m", "captune", "adapt", str(photos), "--classes", "cat,dog", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no shared memory") == 1
    assert "Traceback" not in done.stderr
    assert len((tmp_path / "run" / "predictions.csv").read_text().splitlines()) == 41
