"""The model card: what is known about a run, and what is not, is said in one place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from export_runs import NAMES, make_run
from models import identifier

from captune.backbones.hf import HuggingFace
from captune.cli import main
from captune.core import registry
from captune.report.card import license_of, model_card
from captune.results.run import Run


@pytest.fixture(scope="module")
def run_folder(clip_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards") / "run"
    make_run(folder, HuggingFace.load(str(clip_folder)))
    return folder


def sections(text: str) -> dict[str, list[str]]:
    """Return the items of each section."""
    found: dict[str, list[str]] = {}
    for part in text.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        found[title] = [line for line in lines if line.startswith("- ")]
    return found


def test_a_card_says_what_is_known_and_what_is_not(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["card", str(run_folder), "--out", str(tmp_path / "CARD.md")]) == 0
    text = (tmp_path / "CARD.md").read_text(encoding="utf-8")
    found = sections(text)
    assert list(found) == ["Data", "Method", "Precision", "Limits", "Licenses", "Versions"]
    assert all(found.values())
    run = Run.read(run_folder)
    assert f"{len(run.images):,} images" in found["Data"][0]
    assert "not measured" in found["Precision"][0]
    assert "not known" in found["Licenses"][0]  # a folder without a card of its own
    assert main(["card", str(run_folder)]) == 0
    assert capsys.readouterr().out == text


def test_certificate_estimate_and_health_are_quoted(run_folder: Path) -> None:
    run = Run.read(run_folder)
    run.card["review"] = {"accuracy": {"sentence": "90 % right"}, "accepted": {"sentence": "8 of 10 are accepted."}}
    run.health = {"sentence": "Adaptation looks helpful.", "verdict": "helpful"}
    found = sections(model_card(run))["Precision"]
    assert [line.rpartition(": ")[2].removeprefix("- ") for line in found] == [
        "90 % right.",
        "8 of 10 are accepted.",
        "Adaptation looks helpful.",
    ]


def test_dual_encoders_have_a_card(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    source, _, name = identifier("dual_dinov2", model_folder("dual_dinov2")).partition(":")
    make_run(tmp_path / "run", registry.load("backbones", source).load(name))
    text = model_card(Run.read(tmp_path / "run"))
    assert "dual:" in text
    assert all(name.split()[0] in text for name in NAMES[:2])


def test_a_name_is_no_markup(run_folder: Path) -> None:
    run = Run.read(run_folder)
    run.names = ("<b>bold</b>", "a|b\n# title", *run.names[2:])
    text = model_card(run)
    assert "<b>" not in text
    assert "\n# title" not in text


def test_licenses_are_those_of_the_model_itself_or_known_ones(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# Model\n", encoding="utf-8")
    assert license_of(f"hf:{tmp_path}").endswith("cc-by-4.0.")
    assert "MIT" in license_of("hf:openai/clip-vit-base-patch32")
    assert "not known" in license_of("hf:somebody/else")
    assert json.dumps(license_of("embedded:patterns")).count("Apache") == 1
