"""The disk fails at every change of a file by an export or a benchmark: the old target or the new one is whole."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from export_runs import make_run
from toys import write_classes

from captune.backbones.hf import HuggingFace
from captune.benchmark import runner
from captune.cli import main
from captune.core import registry
from captune.core.errors import CaptuneError
from captune.core.files import LEFTOVERS
from captune.exports.base import ExportFormat, export
from captune.results.image_classifier import OnnxClassifier
from faults.failing import Disk, at_every_change
from faults.wholeness import timeless

FORMATS = registry.names("exports")
SHORT = {"preset": "quick", "epochs": 1, "iterations": 2, "warmup_epochs": 0, "strong_views": 1, "k": 2}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def run_folders(clip_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return an old run and two new ones; the folder of transformers cannot hold a tuner that changes images."""
    folders = {name: tmp_path_factory.mktemp("exports") / name for name in ("old", "new", "plain")}
    backbone = HuggingFace.load(str(clip_folder))
    make_run(folders["old"], backbone)
    make_run(folders["new"], backbone, "feature_adapter", n_images=10)
    make_run(folders["plain"], backbone, n_images=10)
    return folders


def content_of(target: Path) -> Any:
    """Return what an export says; an ONNX file also says how long its check took, so that it is asked instead."""
    if target.suffix == ".onnx":
        views = np.zeros((1, 32, 32, 3), dtype=np.uint8)
        return OnnxClassifier(target).score_views(views).round(5).tobytes()
    if target.is_file():
        return target.read_bytes()
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_is_replaced_as_a_whole_or_not_at_all(
    name: str, run_folders: dict[str, Path], disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer: type[ExportFormat] = registry.load("exports", name)
    run = run_folders["plain" if name == "hf" else "new"]
    old, new = (
        export(source, name, tmp_path / source.name / writer.target).path for source in (run_folders["old"], run)
    )
    contents = content_of(old), content_of(new)
    assert contents[0] != contents[1]
    target, scratch = disk.folder / "exports" / writer.target, disk.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))  # temporary files are on the same disk

    def prepare() -> None:
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir()
        shutil.copytree(old, target) if writer.is_folder else shutil.copy(old, target)

    def act() -> None:
        export(run, name, target, overwrite=True)

    for is_told in at_every_change(disk, prepare, act, f"failed write of an export ({name})", True):
        content = content_of(target)
        assert content in contents
        assert is_told or content == contents[1]
        act()
        assert content_of(target) == contents[1]


def test_a_benchmark_loses_no_cell(
    disk: Disk, tmp_path: Path, backbone: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for part, n_images in (("train", 4), ("test", 2)):
        write_classes(tmp_path / "data" / part, ("cat", "dog", "owl"), n_images, side=10)
    content = {"datasets": ["folder"], "settings": ["ul"], "seeds": [0], "defaults": {"backbone": backbone}}
    content["methods"] = {"zero_shot": None, "cap": SHORT}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    # Forked from this process, so that a cell starts at once and its disk fails too.
    monkeypatch.setattr(runner, "CONTEXT", multiprocessing.get_context("fork"))
    out, whole = disk.folder / "benchmark", tmp_path / "whole"

    def act(out: Path = out) -> None:
        monkeypatch.setenv("CAPTUNE_CACHE", str(out / "cache"))
        words = ("benchmark", tmp_path / "suite.yaml", "--data", tmp_path / "data", "--out", out, "--workers", 0)
        code, said = main([str(word) for word in words]), "".join(capfd.readouterr())
        logs = "".join(path.read_text() for path in out.glob("logs/*"))
        assert "Traceback" not in said + logs, said + logs
        assert "bug in captune" not in said
        assert code in (0, 1, 2), said
        if code:
            raise CaptuneError(said)

    def cells(out: Path) -> dict[str, Any]:
        return {path.name: timeless(json.loads(path.read_text())) for path in out.glob("cells/*.json")}

    act(whole)
    reference = cells(whole)
    assert len(reference) == 2
    prepare = lambda: shutil.rmtree(out, ignore_errors=True)  # noqa: E731
    step = 1 if os.environ.get("CI") else 3  # a suite takes seconds
    for is_told in at_every_change(disk, prepare, act, "failed write in a benchmark, then again", False, step):
        left = cells(out)
        assert all(reference[name] == cell for name, cell in left.items())
        if is_told or list(out.glob("runs/*")) or list(out.rglob(LEFTOVERS)):
            act()
        assert cells(out) == reference
        assert not list(out.glob("runs/*")), "run folders stay behind"
        assert not list(out.rglob(LEFTOVERS)), "unfinished files stay behind"
