"""Walking through a folder of images: everything in it is used or accounted for, and links are followed once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from captune.core.cards import read_json
from captune.core.errors import InputError
from captune.data.paths import SUFFIXES

MARKS = ("run.json", "audit.json", "captune-export.json")
"""Files in folders that captune wrote; their figures are not images to classify."""
LOCK = ".captune-lock"
TAR = ".tar"


class Unused:
    """What was found in a folder and is not used: how many of each kind, and the first of them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def add(self, kind: str, name: str, count: int = 1) -> None:
        """Count files or folders of a kind, such as 'hidden files'."""
        self._counts[kind] = self._counts.get(kind, 0) + count
        self._first.setdefault(kind, name)

    def total(self) -> int:
        """Return how many files and folders are not used."""
        return sum(self._counts.values())

    def sentence(self, place: str) -> str:
        """Return one line that accounts for everything that is not used, empty if there is nothing."""
        kinds = (f"{kind}: {count} (the first is {self._first[kind]!r})" for kind, count in self._counts.items())
        return f"Not used in {place}: {'; '.join(kinds)}." if self._counts else ""


def walk(folder: Path, unused: Unused) -> Iterator[str]:
    """Yield the names of images and shards below a folder, in a stable order; a folder is visited once.

    Folders that are links come last, so that a link never hides the folder that it leads to.
    """
    visited, links = set[tuple[int, int]](), [""]
    for start in links:  # grows while links are found
        waiting = [start]
        while waiting:
            inner = waiting.pop()
            entries = _list(folder, inner, visited, unused)
            below = f"{inner}{os.sep}" if inner else ""
            folders = list[str]()
            for entry in entries:
                name = below + entry.name
                if entry.name.startswith("."):
                    unused.add("hidden files and folders", name)
                elif _is_folder(entry):
                    (links if entry.is_symlink() else folders).append(name)
                elif os.path.splitext(entry.name)[1].lower() in SUFFIXES | {TAR}:  # noqa: PTH122
                    yield name
                else:
                    unused.add("files that are not images", name)
            waiting += reversed(folders)


def _list(folder: Path, inner: str, visited: set[tuple[int, int]], unused: Unused) -> list[os.DirEntry[str]]:
    """Return the content of a folder by name, nothing if it is not used."""
    path = folder / inner
    try:
        facts = path.stat()
        if (facts.st_dev, facts.st_ino) in visited:
            unused.add("links to folders that are used already", inner)
            return []
        visited.add((facts.st_dev, facts.st_ino))
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        if not inner:
            raise InputError(f"The folder {str(folder)!r} cannot be read: {error.strerror}.") from error
        unused.add(f"folders that cannot be read ({error.strerror})", inner)
        return []
    names = {entry.name for entry in entries}
    if inner and (LOCK in names or any(_is_ours(path / mark) for mark in MARKS if mark in names)):
        unused.add("results of captune", inner)
        return []
    return entries


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that cannot be followed
        return False


def _is_ours(mark: Path) -> bool:
    """Return whether a file is a card of captune; another program's run.json is not."""
    try:
        content = read_json(mark)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and str(content.get("format", "")).startswith("captune-")
