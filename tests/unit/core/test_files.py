"""Files are written whole or not at all, and any name may be asked for."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
import time
from pathlib import Path

import pytest

from captune.core import files
from captune.core.errors import CaptuneError, RunFolderError
from captune.core.files import (
    NEW,
    drop_leftovers,
    finish_replacing,
    is_file,
    is_folder,
    locked,
    replaced,
    table,
    write_json,
    write_whole,
)


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


def test_content_and_name_are_brought_to_disk_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(((tmp_path / "a").exists(), os.fstat(number).st_ino)))
    write_whole(tmp_path / "a", "x")
    assert synced == [(False, (tmp_path / "a").stat().st_ino), (True, tmp_path.stat().st_ino)]


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


def test_unfinished_files_are_left_alone_for_a_day(tmp_path: Path) -> None:
    young, old = (tmp_path / f".captune-{name}.part" for name in ("other1", "other2"))
    for path in (young, old):
        path.write_text("half")
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    drop_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [young.name]
    drop_leftovers(tmp_path / "gone")


def test_a_temporary_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPTUNE_CACHE", raising=False)
    monkeypatch.setattr(files, "user_cache_path", lambda *_, **__: Path("~/.cache/captune"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    own = tmp_path / f"captune-{os.getuid()}"
    assert files.cache_folder() == own
    own.mkdir()
    assert files.cache_folder() == own
    own.rmdir()
    own.symlink_to(tmp_path)
    with pytest.raises(CaptuneError, match="CAPTUNE_CACHE"):
        files.cache_folder()


@pytest.mark.parametrize("name", ["a\rb.png", "a\nb.png", "a\r\nb.png", 'a"b,c.png', "\r"])
def test_names_with_line_breaks_are_read_back(name: str) -> None:
    text = "".join(table(["path", "label"], [[name, "cat"], ["b.png", "dog"]]))
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["path", "label"], [name, "cat"], ["b.png", "dog"]]
    assert text.startswith("path,label\n")
    assert text.endswith("b.png,dog\n")


def replace(target: Path, **contents: str) -> None:
    with replaced(target, ("sub/b", "a", "card")) as staging:
        for name, content in contents.items():
            write_whole(staging / name.replace("_", "/"), content)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    target.mkdir()
    (target / "sub").symlink_to(outside)
    with pytest.raises(RunFolderError):
        replace(target, a="1", sub_b="2", card="3")
    (target / "a").symlink_to(outside / "a")
    with pytest.raises(RunFolderError), locked(target / "a", "busy"):
        pass
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("what", ["the folder", "a folder in it", "a file in it"])
def test_links_among_unfinished_files_are_refused(tmp_path: Path, what: str) -> None:
    outside, new = tmp_path / "outside", tmp_path / "run" / NEW
    new.mkdir(parents=True)
    outside.mkdir()
    for name in ("a", "b", "card"):
        (outside / name).write_text("private")
    if what == "the folder":
        new.rmdir()
        new.symlink_to(outside)
    elif what == "a folder in it":
        (new / "card").write_text("x")
        (new / "sub").symlink_to(outside)
    else:
        (new / "card").write_text("x")
        (new / "a").symlink_to(outside / "a")
    with pytest.raises(RunFolderError):
        finish_replacing(tmp_path / "run", ("sub/b", "a", "card"))
    assert sorted(path.name for path in outside.iterdir()) == ["a", "b", "card"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == [NEW]
