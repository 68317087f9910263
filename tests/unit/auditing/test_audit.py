"""The audit: what it finds, writes and measures, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import captune
from captune.auditing.audit import Audit
from captune.cli import main
from captune.core.errors import InputError, RunFolderError
from captune.world import class_names, descriptions_path, write_world

NAMES = list(class_names())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, 10, seed=5)
    return folder


def look(world: Path, **changes: Any) -> Audit:
    common = {"backbone": "embedded:patterns", "quiet": True, "workers": 0, "runs": 3, "k": 5}
    return captune.audit(world, NAMES, **{**common, **changes})


def test_it_names_misleading_names_and_says_what_to_do(world: Path, tmp_path: Path) -> None:
    found = look(world, out=tmp_path / "audit").facts
    assert {"scales", "quilted"} <= set(found["mismatched"])
    assert "polka-dotted" not in found["mismatched"]
    assert "truth" not in found
    assert any("Describe" in step and "describer=" in step for step in found["next_steps"])
    assert json.loads((tmp_path / "audit" / "audit.json").read_text()) == found
    assert not (tmp_path / "audit" / "descriptions.yaml").exists()
    page = (tmp_path / "audit" / "report.html").read_text(encoding="utf-8")
    assert "scales, " in page
    assert page.count("data:image/jpeg") > len(NAMES)  # most classes have three pictures


def test_with_labels_it_measures_names_against_descriptions(world: Path, tmp_path: Path) -> None:
    found = look(world, out=tmp_path / "a", labels="folders", describer=f"file:{descriptions_path()}").facts
    precision = found["truth"]["first_labels_precision"]
    assert precision["by_description"]["all"] > precision["by_name"]["all"] + 0.1
    assert found["truth"]["zero_shot"]["n_images"] == 240
    written = yaml.safe_load((tmp_path / "a" / "descriptions.yaml").read_text())
    assert set(written) == set(found["mismatched"])


def test_the_same_seed_finds_the_same(world: Path) -> None:
    assert look(world, seed=3).facts == look(world, seed=3).facts


def test_the_command_shows_it(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", str(world), "--classes", str(world), "--backbone", "embedded:patterns", "--labels", "folders"]
    words += ["--set", "runs=2", "--workers", "0", "--out", str(tmp_path / "audit")]
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
