"""The README keeps its word: every command is run or parsed, the Python block runs, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from toys import write_images

from captune.cli import _parser

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
LINES = [line.split("  #")[0] for language, block in BLOCKS if language == "sh" for line in block.splitlines()]
COMMANDS = [shlex.split(line)[1:] for line in LINES if line.startswith("captune ")]
TABLE = re.findall(r"`captune ([^`]+)`", README)
PYTHON = [block for language, block in BLOCKS if language == "python"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folders that the README speaks of."""
    for name in ("photos", "new-photos", "labeled-photos/forest", "labeled-photos/river"):
        write_images(tmp_path / name, 2, side=40, suffix=".jpg")
    (tmp_path / "photos" / "000.jpg").rename(tmp_path / "photos" / "1.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_three_commands_run(captune: Any, place: Path, backbone: str) -> None:
    own = [words for words in COMMANDS if words != ["demo"]][:3]
    assert [words[0] for words in own] == ["adapt", "predict", "evaluate"]
    tiny = ["--backbone", backbone, "--workers", "0"]
    for words in own:
        answer = captune(*words, *(tiny if words[0] == "adapt" else tiny[2:]))
        assert answer.code == 0, answer.err
    assert (place / "predictions.csv").read_text().startswith("path,label,confidence,label_2")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_parses(words: list[str]) -> None:
    assert _parser().parse_args(words).name == words[0]


@pytest.mark.parametrize("text", TABLE)
def test_commands_in_sentences_exist(captune: Any, text: str) -> None:
    words = shlex.split(text.replace("METHOD", "zero_shot"))
    if words[0] != "list" and "--help-settings" not in words:  # it would do the work itself
        assert _parser().parse_args(words).name == words[0]
        return
    answer = captune(*words)
    assert answer.code == 0, answer.err


def test_the_python_block_runs(place: Path, backbone: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(PYTHON) == 1
    code = PYTHON[0].replace(', out="run")', f', out="run", backbone={backbone!r}, workers=0)')
    assert code != PYTHON[0]
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip().strip("[]'") in ("forest", "river", "harbor")


def test_links_lead_somewhere() -> None:
    made = {REPOSITORY / "docs" / name for name in ("commands.md", "settings.md", "api.md")}  # by scripts/docs_site.py
    for document in (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")):
        found = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
        links = {document.parent / link for link in found if not link.startswith("http")} - made
        assert [link for link in links if not link.exists()] == [], document.name


def test_make_targets_that_are_named_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    texts = README + (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for target in set(re.findall(r"^\s*make ([\w-]+)", texts, flags=re.MULTILINE)):
        assert re.search(rf"^([\w-]+ )*{target}[ :]", makefile, flags=re.MULTILINE), target
