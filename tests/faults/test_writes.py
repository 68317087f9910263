"""The disk fails at every single change of a file: what was there before, or what was to be written, is whole."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from toys import ToyBackbone, write_classes

from captune.core.errors import CaptuneError
from captune.pipeline import carry_out
from captune.plan import make_plan
from captune.results.image_classifier import load
from captune.results.run import Run
from captune.results.run_folder import read_run_card
from captune.review.corrections import Corrections
from faults.failing import CTRL_C, Disk, at_every_change
from faults.records import record
from faults.wholeness import result_of

NAMES = ["cat", "dog", "bird"]
CAP: dict[str, Any] = {"method": "cap", "epochs": 2, "iterations": 2, "warmup_epochs": 0, "strong_views": 1}
CAP |= {"k": 2, "grow_every": 1, "keep_better": False}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("writes") / "photos", NAMES, 4, side=10)


@pytest.fixture(scope="module")
def runs(images: Path) -> tuple[Run, Run]:
    """Return two runs with different results."""
    return adapt(images, 1), adapt(images, 2)


def adapt(images: Path, seed: int, **options: Any) -> Run:
    """Adapt a toy model; every seed gives another result."""
    where = {"backbone": ToyBackbone(seed), "workers": 0, "seed": seed, "cache": str(images.parent / "cache")}
    return carry_out(make_plan(images, NAMES, None, {**where, **CAP}), quiet=True, report=False, **options)


def found(run: Path) -> dict[str, Any]:
    """Return what a reader finds who looks at the card first."""
    read_run_card(run)
    return result_of(run)


@pytest.mark.slow
def test_a_run_is_replaced_as_a_whole_or_not_at_all(runs: tuple[Run, Run], disk: Disk, tmp_path: Path) -> None:
    old, new = (result_of(run.write(tmp_path / f"{i}")) for i, run in enumerate(runs))
    assert old != new
    target = disk.folder / "run"

    def prepare() -> None:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(tmp_path / "0", target)
        (target / "exports").mkdir()
        (target / "notes.txt").write_text("mine")

    outcomes = set()

    def act() -> None:
        runs[1].write(target)  # without the report, which takes longest

    for is_told in at_every_change(disk, prepare, act, "failed write while a run is replaced", every_error=False):
        content = found(target)
        assert content.pop("notes.txt") == b"mine"
        assert content in (old, new)
        assert is_told or content == new
        assert content == old or not (target / "exports").exists()
        assert load(target, ToyBackbone(1 if content == old else 2)).names == tuple(NAMES)
        outcomes.add((is_told, content == new))
    assert outcomes == {(True, False), (True, True), (False, True)}  # each of these can happen


def test_ctrl_c_while_a_run_is_saved_loses_nothing(runs: tuple[Run, Run], disk: Disk, tmp_path: Path) -> None:
    old, new = (result_of(run.write(tmp_path / f"{i}")) for i, run in enumerate(runs))
    target, n, outcomes, is_ended = disk.folder / "interrupted", 0, [], False
    while not is_ended:
        n += 1
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(tmp_path / "0", target)
        with suppress(KeyboardInterrupt), disk.failing(n, CTRL_C):
            runs[1].write(target)
            is_ended = disk.count < n
        content = found(target)
        assert content in (old, new)
        outcomes.append(content == new)
        record("Ctrl-C while a run is saved", "same result")
    assert len(outcomes) > 20
    assert outcomes == sorted(outcomes)  # from some change on, the new run counts
    assert not outcomes[0]


def test_an_answer_of_a_person_is_saved_or_asked_for_again(disk: Disk) -> None:
    path = disk.folder / "review" / "corrections.jsonl"

    def prepare() -> None:
        path.unlink(missing_ok=True)
        Corrections(path).add("label", "cat", images=("1.png",))

    def act() -> None:
        Corrections(path).add("label", "dog", images=("2.png",))

    for is_told in at_every_change(disk, prepare, act, "failed write of a correction", every_error=True):
        said = [entry.label for entry in Corrections(path)]
        assert said in (["cat"], ["cat", "dog"])
        assert is_told or said == ["cat", "dog"]
        act()
        assert [entry.label for entry in Corrections(path)][-1] == "dog"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", ["a run", "a run that is replaced", "a run that is resumed"])
def test_adapt_loses_nothing(what: str, images: Path, disk: Disk, tmp_path: Path) -> None:
    adapt(images, 1, out=tmp_path / "old")
    adapt(images, 2, out=tmp_path / "new")
    old, new = result_of(tmp_path / "old"), result_of(tmp_path / "new")
    run, started = disk.folder / "adapted", tmp_path / "started"
    options: dict[str, bool] = {"overwrite": True} if what == "a run that is replaced" else {}
    if what == "a run that is resumed":
        for n in range(20, 100, 5):  # until a failed change leaves a checkpoint
            shutil.rmtree(disk.folder / "started", ignore_errors=True)
            with disk.failing(n), suppress(CaptuneError):
                adapt(images, 2, out=disk.folder / "started")
            if list((disk.folder / "started").glob("checkpoints/[0-9]*")):
                break
        (disk.folder / "started").rename(started)
        assert list(started.glob("checkpoints/[0-9]*"))
        options = {"resume": True}

    def prepare() -> None:
        shutil.rmtree(run, ignore_errors=True)
        if options:
            shutil.copytree(started if "resume" in options else tmp_path / "old", run)

    act = lambda **more: adapt(images, 2, out=run, **(more or options))  # noqa: E731
    for is_told in at_every_change(disk, prepare, act, f"failed write in {what}", bool(os.environ.get("CI"))):
        if is_told and "overwrite" in options:
            assert found(run) in (old, new)
        if is_told:
            is_left = (run / ".captune-lock").exists()
            act(resume=True) if is_left else act(overwrite=(run / "run.json").exists())
        assert found(run) == new
