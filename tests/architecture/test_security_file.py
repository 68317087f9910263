"""SECURITY.md keeps its word: every threat names tests that exist, and every dependency is pinned."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
THREATS = dict(re.findall(r"^- \*\*(.+?)\.\*\*(.*?)(?=^- |^#|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL))
REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_there_is_a_threat_list() -> None:
    assert len(THREATS) >= 30
    assert len(THREATS) == len(re.findall(r"^- ", TEXT.partition("## Out of scope")[0], flags=re.MULTILINE))
    threats = " ".join(THREATS)
    words = (
        "pickle",
        "trust_remote_code",
        "bombs",
        "manifest",
        "Tar",
        "HTML",
        "keys",
        "machines",
        "YAML",
        "cache",
        "rebinding",
    )
    assert [word for word in words if not re.search(rf"\b{word}\b", threats)] == []


def test_every_threat_names_tests_that_exist() -> None:
    references = {threat: REFERENCE.findall(text) for threat, text in THREATS.items()}
    assert [threat for threat, found in references.items() if not found] == []
    files = {file for found in references.values() for file, _ in found}
    known = {file: names_in(REPOSITORY / file) if (REPOSITORY / file).is_file() else set() for file in files}
    assert [(file, test) for found in references.values() for file, test in found if test not in known[file]] == []


def test_every_dependency_is_pinned() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["openai"], *extras["onnx"], *extras["parquet"]]
    names = {normal(re.split(r"[\[<>=!~ ]", entry)[0]) for entry in wanted} - {"captune"}
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = {normal(pin.partition("==")[0]) for pin in pins if "==" in pin}
    assert names - pinned == set()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
