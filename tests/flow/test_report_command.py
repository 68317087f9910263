"""`captune report` from end to end: rebuild with labels, compare, and the command that a page gives to repeat a run."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run(captune: Any, photos: Path, backbone: str, tmp_path: Path) -> Path:
    words = ("--classes", photos, "--backbone", backbone, "--out", tmp_path / "my run", "--workers", 0)
    answer = captune("adapt", photos, *words, "--method", "cap", "--set", "epochs=2", "--set", "iterations=2")
    assert answer.code == 0, answer.err
    return tmp_path / "my run"


def test_a_report_is_rebuilt_with_labels(captune: Any, run: Path, tmp_path: Path) -> None:
    assert "Accuracy" not in (run / "report.html").read_text(encoding="utf-8")
    answer = captune("report", run, "--labels", "folders")
    assert answer.code == 0, answer.err
    assert f"Report: {run / 'report.html'}" in answer.out
    assert "Accuracy" in (run / "report.html").read_text(encoding="utf-8")
    assert captune("report", run, run, "--out", tmp_path / "both.html").code == 0
    assert "2 runs on 2 classes" in (tmp_path / "both.html").read_text(encoding="utf-8")


def test_the_command_on_the_page_repeats_the_run(
    captune: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    found = re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    checking, following, repeating = (re.sub("</?span>", "", command) for command in found)
    assert shlex.split(html.unescape(checking))[:3] == ["captune", "suggest", str(run)]
    assert shlex.split(html.unescape(following)) == ["captune", "review", str(run)]
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(html.unescape(repeating))
    assert program == "captune"
    assert captune(*words).code == 0
    assert (tmp_path / "my run-again" / "predictions.csv").read_bytes() == (run / "predictions.csv").read_bytes()
