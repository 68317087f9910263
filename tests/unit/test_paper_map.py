"""The map from the paper to the code names only what exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "paper-map.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([^`\s]+)`", TEXT)))
SUITES = sorted(set(re.findall(r"suites/\S+\.yaml", TEXT)))


@pytest.mark.parametrize("name", [name for name in NAMED if name.startswith("captune.")])
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


def test_every_numbered_equation_is_on_the_map() -> None:
    numbers: set[int] = set()
    for first, last in re.findall(r"Eqs?\. (\d+)(?: to (\d+))?", TEXT):
        numbers |= set(range(int(first), int(last or first) + 1))
    numbers |= {int(n) for group in re.findall(r"Eqs\. ([\d, and]+)", TEXT) for n in re.findall(r"\d+", group)}
    assert numbers >= set(range(1, 15))
