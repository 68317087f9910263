"""The pages of the documentation site that are made from the code are complete, and links lead to them."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import captune
from captune.cli import COMMANDS
from captune.core import registry

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site() -> Any:
    spec = importlib.util.spec_from_file_location("docs_site", REPOSITORY / "scripts" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(site: Any) -> dict[str, str]:
    return dict(site.generated_pages())


def test_every_command_and_option_is_in_the_reference(pages: dict[str, str]) -> None:
    text = pages["commands.md"]
    assert re.findall(r"^## captune (\w+)$", text, flags=re.MULTILINE) == [
        name.rstrip("_") for names in COMMANDS.values() for name in names
    ]
    assert "| `--classes FILE|a,b,c` | text or YAML file" in text
    assert "| `--resume` |" in text


def test_every_method_and_its_settings_are_in_the_reference(pages: dict[str, str]) -> None:
    text = pages["settings.md"]
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == ["Every run", *registry.names("methods")]
    for name in registry.names("methods"):
        for field in dataclasses.fields(registry.load("methods", name).Settings):
            assert f"| `{field.name}` |" in text


def test_every_public_name_is_in_the_reference(pages: dict[str, str]) -> None:
    found = re.findall(r"^::: captune\.[\w.]+\.(\w+)$", pages["api.md"], flags=re.MULTILINE)
    assert set(found) == set(captune.__all__) - {"__version__"}


def test_table_rows_have_as_many_cells_as_their_heading(pages: dict[str, str]) -> None:
    for name in ("commands.md", "settings.md"):
        width = 0
        for line in pages[name].splitlines():
            n_cells = len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) if line.startswith("|") else 0
            assert n_cells in (0, width) or not width, line
            width = n_cells


def test_links_to_files_of_the_repository_lead_to_their_pages(site: Any) -> None:
    moved = {
        "../ARCHITECTURE.md#files-on-disk": "architecture.md#files-on-disk",
        "CONTRIBUTING.md": "contributing.md",
        "docs/cap.md": "cap.md",
        "notebooks/python-api.ipynb": "notebooks/python-api.md",
        "https://example.org/docs/a.md": "https://example.org/docs/a.md",
        "#anchor": "#anchor",
    }
    assert {link: site.page_address(link) for link in moved} == moved
    assert site.on_page_markdown("[a](../SECURITY.md) ![b](images/b.png)") == "[a](security.md) ![b](images/b.png)"


def test_every_page_is_in_the_navigation(pages: dict[str, str]) -> None:
    text = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": ([\w/-]+\.md)$", text, flags=re.MULTILINE))
    docs = REPOSITORY / "docs"
    assert listed == {*(str(path.relative_to(docs)) for path in docs.rglob("*.md")), *pages}
    assert yaml.safe_load(text)["strict"] is True
