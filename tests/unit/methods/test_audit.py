"""The audit: what it finds, writes and measures, and how it refuses."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import captune
from captune.cli import main
from captune.core.errors import InputError, RunFolderError
from captune.report.measures import Measures
from captune.report.summary import next_steps
from captune.results.run import Run
from captune.world import class_names, descriptions_path, write_world

NAMES = list(class_names())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, 10, seed=5)
    return folder


def look(world: Path, **changes: Any) -> Run:
    common = {"backbone": "embedded:patterns", "quiet": True, "workers": 0, "k": 5}
    return captune.audit(world, NAMES, **{**common, **changes})


def test_it_names_misleading_names_and_says_what_to_do(world: Path, tmp_path: Path) -> None:
    run = look(world, out=tmp_path / "audit")
    found = run.alignment["mismatched"]
    assert {"scales", "quilted"} <= set(found)
    assert "polka-dotted" not in found
    measures = Measures(Run.read(tmp_path / "audit"))
    assert not measures.run.is_adapted
    commands = [shlex.split(step["command"])[:2] for step in next_steps(measures)]
    assert commands == [["captune", "audit"], ["captune", "review"], ["captune", "adapt"]]
    assert not (tmp_path / "audit" / "descriptions.yaml").exists()
    page = (tmp_path / "audit" / "report.html").read_text(encoding="utf-8")
    assert page.index('id="mismatch"') < page.index('id="classes"')
    assert page.count("data:image/jpeg") > len(NAMES)  # most classes have pictures
    assert "captune audit" in run.report().html


def test_with_labels_it_measures_names_against_descriptions(world: Path, tmp_path: Path) -> None:
    look(world, out=tmp_path / "a", labels="folders", describer=f"file:{descriptions_path()}")
    measures = Measures(Run.read(tmp_path / "a", "folders"))
    precision = measures.first_labels_precision()
    assert precision["by description"] > precision["by name"] + 0.1
    assert len(measures.known) == 240
    written = yaml.safe_load((tmp_path / "a" / "descriptions.yaml").read_text())
    assert set(written) == {measures.run.names[c] for c in measures.mismatched}
    assert "Right by description" in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    last = next_steps(measures)[-1]["command"]
    assert f"file:{tmp_path / 'a' / 'descriptions.yaml'}" in last


def test_a_step_can_be_pasted(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "an audit"
    words = ["audit", str(world), "--classes", str(world), "--backbone", "embedded:patterns", "--workers", "0"]
    assert main([*words, "--set", "k=4", "--out", str(out), "--quiet"]) == 0
    adapt = next_steps(Measures(Run.read(out)))[-1]["command"]
    assert main([*shlex.split(adapt)[1:-1], str(tmp_path / "run"), "--method", "zero_shot", "--quiet"]) == 0
    assert (tmp_path / "run" / "run.json").is_file()


def test_the_same_seed_finds_the_same(world: Path) -> None:
    assert look(world, seed=3).rounds == look(world, seed=3).rounds


def test_the_command_shows_it(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", str(world), "--classes", str(world), "--backbone", "embedded:patterns", "--labels", "folders"]
    words += ["--set", "detection=paper", "--workers", "0", "--out", str(tmp_path / "audit")]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "Misleading class names:" in shown
    assert "Next steps:" in shown
    assert f"Report: {tmp_path / 'audit' / 'report.html'}" in shown
    assert main(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


def test_wrong_input_is_told(world: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'rnus'"):
        look(world, rnus=3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        captune.audit(tmp_path / "empty", NAMES, backbone="embedded:patterns")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "x.txt").write_text("mine")
    with pytest.raises(RunFolderError):
        look(world, out=tmp_path / "photos")
