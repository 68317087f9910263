"""Files are written whole or not at all, and any name may be asked for."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from captune.core.errors import CaptuneError
from captune.core.files import LEFTOVERS, drop_leftovers, is_file, is_folder, table, write_json, write_whole


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


def write_slowly(path: Path, begun: Event, goes_on: Event) -> None:
    def pieces() -> Iterator[str]:
        yield "first, "
        begun.set()
        assert goes_on.wait(60)
        yield "second"

    write_whole(path, pieces())


def test_only_what_a_kill_left_behind_is_dropped(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("fork")
    events = [(processes.Event(), processes.Event()) for _ in range(2)]
    writers = [
        processes.Process(target=write_slowly, args=(tmp_path / name, *own))
        for name, own in zip(("alive", "killed"), events, strict=True)
    ]
    for writer, (has_begun, _) in zip(writers, events, strict=True):
        writer.start()
        assert has_begun.wait(60)
    assert len(list(tmp_path.glob(LEFTOVERS))) == 2
    drop_leftovers(tmp_path)
    assert len(list(tmp_path.glob(LEFTOVERS))) == 2  # both are at work
    writers[1].kill()
    writers[1].join()
    drop_leftovers(tmp_path)
    assert len(list(tmp_path.glob(LEFTOVERS))) == 1
    events[0][1].set()
    writers[0].join()
    assert [path.name for path in tmp_path.iterdir()] == ["alive"]
    assert (tmp_path / "alive").read_text() == "first, second"


def test_unfinished_files_of_other_machines_are_left_alone_for_a_day(tmp_path: Path) -> None:
    young, old, other = (tmp_path / f".captune-{name}.part" for name in ("other1", "other2", "x"))
    for path in (young, old):
        path.write_text("half")
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    other.symlink_to(tmp_path / "elsewhere")
    drop_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([young.name, other.name])
    drop_leftovers(tmp_path / "gone")


def test_a_file_that_was_taken_for_a_leftover_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    lock = fcntl.flock

    def too_late(file: Any, how: int) -> None:
        made.append(file.name)
        if len(made) == 1:
            Path(file.name).unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    write_whole(tmp_path / "a", "x")
    assert len(made) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["a\rb.png", "a\nb.png", "a\r\nb.png", 'a"b,c.png', "\r"])
def test_names_with_line_breaks_are_read_back(name: str) -> None:
    text = "".join(table(["path", "label"], [[name, "cat"], ["b.png", "dog"]]))
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["path", "label"], [name, "cat"], ["b.png", "dog"]]
    assert text.startswith("path,label\n")
    assert text.endswith("b.png,dog\n")
