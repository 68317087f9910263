"""The map from the paper to the code, and every import on the pages, names only what exists."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from captune.cli import _parser

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "paper-map.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([^`\s]+)`", TEXT)))
IMPORTS = sorted(
    f"{module}.{name.strip()}"
    for page in (REPOSITORY / "docs").glob("*.md")
    for module, names in re.findall(r"^ *from (captune[\w.]*) import ([\w, ]+)$", page.read_text("utf-8"), re.MULTILINE)
    for name in names.split(",")
)
COMMANDS = sorted(set(re.findall(r"`(captune [^`]+)`", TEXT)))
SUITES = sorted({f"src/captune/benchmark/suites/{name}.yaml" for name in re.findall(r"captune benchmark (\w+)", TEXT)})


@pytest.mark.parametrize("name", [*(name for name in NAMED if name.startswith("captune.")), *IMPORTS])
def test_code_exists(name: str) -> None:
    parts = name.split(".")
    for n_parts in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:n_parts]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[n_parts:]:
            found = getattr(found, attribute)
        return
    pytest.fail(f"{name} does not exist")


@pytest.mark.parametrize("path", [name for name in NAMED if name.startswith("tests/")] + SUITES)
def test_files_exist(path: str) -> None:
    assert (REPOSITORY / path).exists()


@pytest.mark.parametrize(("kind", "count"), [("Eq", 14), ("Table", 7), ("Figure", 15), ("Algorithm", 1)], ids=str)
def test_everything_that_the_paper_numbers_is_on_the_map(kind: str, count: int) -> None:
    numbers: set[int] = set()
    for text in re.findall(rf"\b{kind}s?\.? (\d+(?:(?:, | and | to )\d+)*)", TEXT):
        for part in re.split(r", | and ", text):
            first, _, last = part.partition(" to ")
            numbers |= set(range(int(first), int(last or first) + 1))
    assert numbers == set(range(1, count + 1))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_parsed(command: str) -> None:
    words = shlex.split(command)[1:]
    if len(words) == 1:  # a command without its words
        with pytest.raises(SystemExit) as end:
            _parser().parse_args([words[0], "--help"])
        assert end.value.code == 0
    else:
        _parser().parse_args(words)
