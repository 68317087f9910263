"""Disks, caches, images, neighbors and clocks that fail: a clear message or a repair, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from toys import write_images

from faults.records import record
from faults.wholeness import halves, result_of
from faults.zygote import Zygote

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CAP = ("--method", "cap", "--preset", "quick", "--set", "epochs=3", "--set", "iterations=4", "--set", "k=4")
CAP += ("--set", "warmup_epochs=0", "--set", "strong_views=1", "--set", "grow_every=1")
Steps = tuple[tuple[str, dict[str, Any]], ...]
FLUSH: Steps = (("flush_often", {}),)


class Place:
    """A folder with a command, its output, cache and log."""

    def __init__(self, zygote: Zygote, base: Path, photos: Path, backbone: str, method: tuple[str, ...]) -> None:
        self.zygote, self.base, self.photos = zygote, base, photos
        common = ("--classes", "cat,dog,bird", "--backbone", backbone, "--workers", "0")
        self.words = ("adapt", str(photos), *common, *method)
        self.out, self.cache = base / "run", base / "cache"

    def run(self, *more: object, steps: Steps = (), out: Path | None = None, cache: Path | None = None) -> Any:
        """Run the command and return its exit code and what it said."""
        words = (*self.words, "--out", out or self.out, *more)
        code, said, _ = self.zygote.run(words, self.base / "log", cache or self.cache, steps)
        assert "Traceback" not in said, said
        assert "bug in captune" not in said, said
        return code, said


@pytest.fixture
def place(zygote: Zygote, tmp_path: Path, photos: Path, backbone: str) -> Place:
    return Place(zygote, tmp_path, photos, backbone, CAP)


@pytest.fixture
def quick(zygote: Zygote, tmp_path: Path, photos: Path, backbone: str) -> Place:
    return Place(zygote, tmp_path, photos, backbone, ("--method", "zero_shot"))


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mount a disk of a size."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, check=False, capture_output=True).returncode != 0:
        pytest.skip("Mounting a small disk needs root.")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("kilobytes", [4, 24, 64, 160])
def test_a_full_disk_is_told_and_resumed_once_there_is_space(place: Place, kilobytes: int) -> None:
    code, said = place.run(out=place.base / "whole")
    assert code == 0, said
    reference = result_of(place.base / "whole")
    with mounted(place.base / "disk", f"{kilobytes}k") as disk:
        out = disk / "run"
        code, said = place.run(out=out)
        assert code in (0, 2)
        assert code == 0 or "cannot be written: No space left on device" in said, said
        assert halves(out, place.cache, reference) == []
        is_told = code == 2 or "report could not be" in said or (out / "report.html").exists()
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        if code == 2:
            code, said = place.run("--resume", out=out)
        is_same = code == 0 and result_of(out) == reference
        record("full disk below the run folder, then space and --resume", "same result" if is_same else "lost")
        assert is_told, said
        assert is_same, said


def test_a_full_disk_below_the_cache_is_told(quick: Place) -> None:
    with mounted(quick.base / "disk", "4k") as disk:
        code, said = quick.run(cache=disk / "cache")
        is_told = code == 2 and "cannot be written: No space left on device" in said
        record("full disk below the cache, then another cache", "clear message" if is_told else "lost")
        assert is_told, said
    code, said = quick.run()
    assert code == 0, said


def test_a_limit_on_files_is_told(quick: Place) -> None:
    code, said = quick.run(steps=(("limit_files", {"n_bytes": 2000}),))
    is_told = code == 2 and "cannot be written: File too large" in said
    record("files may not grow (quota)", "clear message" if is_told else "lost")
    assert is_told, said
    code, said = quick.run("--resume")
    assert code == 0, said


def test_a_read_only_folder_is_told_before_anything_is_computed(quick: Place) -> None:
    with mounted(quick.base / "disk", "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        code, said = quick.run(out=disk / "run")
        is_told = code == 2 and "cannot be written" in said and "ead-only" in said and not quick.cache.exists()
        record("read-only output folder", "clear message" if is_told else "lost")
        assert is_told, said


def test_a_flipped_byte_in_the_cache_is_repaired(quick: Place) -> None:
    code, said = quick.run(steps=FLUSH)
    assert code == 0, said
    reference = result_of(quick.out)
    parts = sorted(quick.cache.glob("embeddings/*/*.safetensors"))
    assert parts
    for number in range(6):
        part = sorted(quick.cache.glob("embeddings/*/*.safetensors"))[0]
        content = bytearray(part.read_bytes())
        content[number * (len(content) - 1) // 5] ^= 1 << number
        part.write_bytes(content)
        code, said = quick.run("--overwrite", steps=FLUSH)
        is_same = code == 0 and result_of(quick.out) == reference and halves(quick.out, quick.cache, reference) == []
        record("one flipped bit in the embedding cache", "repaired" if is_same else "lost")
        assert is_same, said


def test_a_flipped_byte_in_a_checkpoint_is_passed_over(place: Place) -> None:
    code, said = place.run(out=place.base / "whole")
    assert code == 0, said
    reference = result_of(place.base / "whole")
    for number in (0, 1):
        out = place.base / f"{number}"
        step = ("die_at_change", {"n": 8 + 6 * number, "folder": str(out)})
        code, _ = place.run(out=out, steps=(step,))
        saved = sorted(out.glob("checkpoints/*.safetensors"))
        assert code == -9
        assert saved
        content = bytearray(saved[-1].read_bytes())
        content[len(content) // 2] ^= 1
        saved[-1].write_bytes(content)
        code, said = place.run("--resume", out=out)
        is_same = code == 0 and result_of(out) == reference
        record("one flipped bit in the newest checkpoint", "repaired" if is_same else "lost")
        assert is_same, said


@pytest.mark.parametrize("how", ["vanishes", "changes", "is cut off"])
@pytest.mark.parametrize("when", [1, 4, 12])
def test_an_image_that_goes_away_in_the_middle(
    zygote: Zygote, tmp_path: Path, backbone: str, how: str, when: int
) -> None:
    photos = tmp_path / "photos"
    for number, name in enumerate(("cat", "dog", "bird")):
        write_images(photos / name, 16, side=36, seed=number)
    place = Place(zygote, tmp_path, photos, backbone, CAP)
    victim, by = photos / "dog" / "007.png", tmp_path / "by.png"
    step: tuple[str, dict[str, Any]] = ("remove_when", {"path": str(victim)})
    if how != "vanishes":
        other = write_images(tmp_path / "other", 1, side=36, seed=77) / "000.png"
        by.write_bytes(other.read_bytes() if how == "changes" else victim.read_bytes()[:300])
        step = ("replace_when", {"path": str(victim), "by": str(by)})
    code, said = place.run(steps=(*FLUSH, (step[0], {"n": when, "folder": str(tmp_path), **step[1]})))
    assert code in (0, 2), said
    if code == 0:
        names = [row.split(",")[0] for row in (place.out / "predictions.csv").read_text().splitlines()[1:]]
        aside = (place.out / "skipped.csv").read_text()
        assert ("dog/007.png" in names) != ("dog/007.png" in aside)
        assert len(names) + aside.count("\n") - 1 == 48
    else:
        assert "007.png" in said, said
    record(f"an image {how} during a run", "repaired" if code == 0 else "clear message")


def test_two_runs_on_one_folder(place: Place, zygote: Zygote) -> None:
    second = Zygote()
    try:
        pid = zygote.start((*place.words, "--out", place.out), place.base / "first", place.cache)
        deadline = time.monotonic() + 60
        while not (place.out / ".captune-lock").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        os.kill(pid, signal.SIGSTOP)
        for more in ((), ("--overwrite",), ("--resume",)):
            code, said, _ = second.run((*place.words, "--out", place.out, *more), place.base / "second", place.cache)
            is_told = code == 2 and f"Another captune is writing to the output folder '{place.out}'" in said
            record("a second run on the same folder", "clear message" if is_told and str(pid) in said else "lost")
            assert is_told, said
        os.kill(pid, signal.SIGCONT)
        assert zygote.wait() == 0, (place.base / "first").read_text()
        code, said = place.run(out=place.base / "alone")
        assert result_of(place.out) == result_of(place.base / "alone")
    finally:
        second.close()


def test_a_clock_that_jumps_changes_nothing(place: Place) -> None:
    code, said = place.run(out=place.base / "whole")
    assert code == 0, said
    reference = result_of(place.base / "whole")
    for seed in range(3):
        out, clock = place.base / f"{seed}", ("jump_clock", {"seed": seed})
        code, said = place.run(out=out, steps=(*FLUSH, clock, ("die_at_change", {"n": 20, "folder": str(out)})))
        assert code == -9, said
        code, said = place.run("--resume", out=out, steps=(clock,))
        is_same = code == 0 and result_of(out) == reference
        record("a clock that jumps by years, and a kill", "same result" if is_same else "lost")
        assert is_same, said
