"""Files are written whole or not at all, and any name may be asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from captune.errors import CaptuneError
from captune.files import is_file, is_folder, write_json, write_whole


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_whole(path, "eins ä")
    write_whole(path, b"zwei")
    assert path.read_bytes() == b"zwei"
    assert [child.name for child in path.parent.iterdir()] == ["a.txt"]


def test_rights_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a", "old")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CaptuneError, match="No space left"):
        write_whole(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["file/below", "folder", "x" * 300])
def test_a_place_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CaptuneError, match="cannot be written"):
        write_whole(tmp_path / name, "x")


def test_json_is_readable_and_refuses_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ä": [1, None]})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"ä": [1, None]}
    assert "ä" in (tmp_path / "a.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "b.json", float("nan"))
    assert not (tmp_path / "b.json").exists()


def test_any_name_may_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    assert is_folder(tmp_path)
    assert is_file(tmp_path / "a")
    assert not is_file(tmp_path)
    assert not is_folder(tmp_path / "a")
    for odd in ("x" * 5000, "nul\0", "", "gone"):
        assert not is_file(odd)
        assert not (odd and is_folder(odd))
