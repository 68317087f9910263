"""Every kind of bad input that docs/bad-input.md lists: exit code 2, no traceback, the key words."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bad_input_cases import CASES, Case
from bad_input_table import make_place

DOCUMENT = Path(__file__).parents[2] / "docs" / "bad-input.md"


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, clip_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("bad-input") / "base"
    make_place(folder, clip_folder)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_bad_input_gets_a_useful_answer(
    captune: Any, case: Case, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(base, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    case.prepare()
    answer = captune(*case.command)
    assert answer.code == 2, answer.err
    assert "error: " in answer.err
    assert "unexpected" not in answer.err
    for words in case.words:
        assert words in answer.err
    assert answer.out == ""
    assert not Path("new-run/run.json").exists()


def test_the_document_lists_every_case() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [case.what for case in CASES]
    assert len(CASES) >= 20
