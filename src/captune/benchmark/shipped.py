"""Suites that come with captune: found by their name from anywhere, as a file of one's own is by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from captune.core.errors import UnknownNameError, nearest
from captune.core.files import is_file, is_folder
from captune.core.settings import read_yaml

FOLDER = Path(__file__).parent / "suites"


def shipped_suites() -> dict[str, Path]:
    """Return the files of the suites that come with captune, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def suite_title(path: Path) -> str:
    """Return what a suite file says it measures."""
    content: dict[str, Any] = read_yaml(path)
    return str(content.get("title", "")) or path.stem


def find_suite(word: str | Path) -> Path:
    """Return the file that a name (`paper`) or a path (`suites/paper.yaml`) means."""
    shipped = shipped_suites()
    if str(word) in shipped:
        return shipped[str(word)]
    path = Path(word)
    if is_file(path) or is_folder(path):
        return path
    raise UnknownNameError(
        f"No suite {str(word)!r}: there is no such file, and captune brings none of this name."
        f"{nearest(path.stem, shipped)} It brings: {', '.join(shipped)}. See them with: captune list suites"
    )
