"""The demo tells the whole story: names that mislead are found, and adaptation clearly helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from captune.commands.demo import run_demo
from captune.world import WORLD_KINDS


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("demo")
    return out, run_demo(out, train_images=12, epochs=8, iterations=25, k=6, strong_views=1)


def test_adaptation_helps_on_new_images(demo: tuple[Path, Any]) -> None:
    before, after, _ = demo[1][0]
    assert 0.35 < before.accuracy < 0.65
    assert after.accuracy > before.accuracy + 0.1
    assert after.lowest_five > before.lowest_five


def test_twelve_answers_help_without_descriptions(demo: tuple[Path, Any]) -> None:
    before, _, answered = demo[1][0]
    assert answered.accuracy > before.accuracy + 0.05
    assert answered.lowest_five >= before.lowest_five


def test_the_audit_names_classes_that_really_are_mismatched_or_confused(demo: tuple[Path, Any]) -> None:
    mismatched = demo[1][1]
    assert len(mismatched) >= 4
    assert {WORLD_KINDS[name] for name in mismatched} <= {"mismatched", "confused"}


def test_everything_is_where_the_demo_says(demo: tuple[Path, Any]) -> None:
    out, _ = demo
    assert (out / "run" / "report.html").is_file()
    assert (out / "audit" / "run.json").is_file()
    assert (out / "zero_shot" / "run.json").is_file()


def test_the_command_ends_with_before_after_and_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, demo: tuple[Path, Any]
) -> None:
    import captune.commands.demo
    from captune.cli import main

    monkeypatch.setattr(captune.commands.demo, "run_demo", lambda out, seed: demo[1])  # the story itself ran above
    assert main(["demo", "--out", str(tmp_path)]) == 0
    last = capsys.readouterr().out
    assert "accuracy" in last
    assert "never predicted" in last
    assert "12 answers" in last
    assert str(tmp_path / "run" / "report.html") in last.replace("\n", "")
