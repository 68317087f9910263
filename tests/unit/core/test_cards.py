"""Cards: a file of another format, a newer version, absurd size or nesting is one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from captune.core import files
from captune.core.errors import RunFolderError

GOOD = '{"format": "x", "version": 1, "nested": [[{"a": [1]}]]}'


def read(tmp_path: Path, text: str) -> dict[str, object]:
    (tmp_path / "card.json").write_text(text)
    return files.read_card(tmp_path / "card.json", "x", 1, "gone")


def test_a_card_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD)["nested"] == [[{"a": [1]}]]


@pytest.mark.parametrize("depth", [files.MAX_DEPTH, 5_000, 1_000_000])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
def test_absurd_nesting_is_refused(tmp_path: Path, depth: int, start: str, end: str) -> None:
    with pytest.raises(RunFolderError, match=str(files.MAX_DEPTH)):
        read(tmp_path, f'{{"format": "x", "version": 1, "a": {start * depth}1{end * depth}}}')


def test_an_absurd_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", len(GOOD) - 1)
    with pytest.raises(RunFolderError, match=str(len(GOOD) - 1)):
        read(tmp_path, GOOD)


@pytest.mark.parametrize("text", ["", "[]", "7", '{"format": "y", "version": 1}', '{"format": "x", "version": 2}'])
def test_other_content_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RunFolderError, match="card"):
        read(tmp_path, text)


def test_a_missing_card_is_reported_as_the_caller_asked(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="gone"):
        files.read_card(tmp_path / "card.json", "x", 1, "gone")
