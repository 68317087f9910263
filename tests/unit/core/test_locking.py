"""A lock file keeps others out while its process lives, and only then."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from captune.core.errors import RunFolderError
from captune.core.files import locked

FORKS = multiprocessing.get_context("fork")


def keep(path: Path, is_held: Event, may_go: Event) -> None:
    with locked(path, "busy"):
        is_held.set()
        may_go.wait(60)


def try_once(path: Path) -> None:
    try:
        with locked(path, "busy"):
            os._exit(0)
    except RunFolderError:
        os._exit(3)


def is_free(path: Path) -> bool:
    """Return whether another process gets the lock."""
    (other := FORKS.Process(target=try_once, args=(path,))).start()
    other.join()
    assert other.exitcode in (0, 3)
    return other.exitcode == 0


@contextmanager
def kept_elsewhere(path: Path) -> Iterator[tuple[BaseProcess, Event]]:
    is_held, may_go = FORKS.Event(), FORKS.Event()
    (other := FORKS.Process(target=keep, args=(path, is_held, may_go))).start()
    assert is_held.wait(60)
    yield other, may_go
    other.kill()
    other.join()


def test_who_holds_it_is_told_and_a_kill_frees_it(tmp_path: Path) -> None:
    with kept_elsewhere(tmp_path / "lock") as (other, _):
        with pytest.raises(RunFolderError, match=rf"^The folder is busy \(process {other.pid} on .*\)\."):
            locked(tmp_path / "lock", "The folder is busy").__enter__()
        other.kill()
        other.join()
        with locked(tmp_path / "lock", "busy"):
            assert f"process {os.getpid()} " in (tmp_path / "lock").read_text()


def test_whoever_waits_gets_it_when_it_is_free(tmp_path: Path) -> None:
    with kept_elsewhere(tmp_path / "lock") as (_, may_go):
        threading.Timer(0.3, may_go.set).start()
        began = time.monotonic()
        with locked(tmp_path / "lock", "busy", wait=60):
            assert 0.2 < time.monotonic() - began < 50


def test_a_thread_that_is_refused_does_not_free_the_lock_of_its_process(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", "busy"):
        assert not is_free(tmp_path / "lock")
        with pytest.raises(RunFolderError, match=rf"process {os.getpid()}\b"):
            locked(tmp_path / "lock", "busy").__enter__()
        assert not is_free(tmp_path / "lock")
    assert is_free(tmp_path / "lock")


def test_a_file_that_its_holder_removed_is_made_again(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", "busy"):
        (tmp_path / "lock").unlink()
        assert is_free(tmp_path / "lock")
    with locked(tmp_path / "lock", "busy"):
        assert (tmp_path / "lock").exists()


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        locked(tmp_path / "file" / "lock", "busy").__enter__()


def hold_with_worker(path: Path, kind: str, sent: Connection) -> None:
    with locked(path, "busy"):
        worker = multiprocessing.get_context(kind).Process(target=time.sleep, args=(60,))
        worker.start()
        sent.send(worker.pid)
        time.sleep(60)


@pytest.mark.parametrize("kind", ["fork", "spawn", "forkserver"])
def test_workers_that_outlive_a_killed_process_do_not_keep_its_lock(tmp_path: Path, kind: str) -> None:
    received, sent = FORKS.Pipe(duplex=False)
    (holder := FORKS.Process(target=hold_with_worker, args=(tmp_path / "lock", kind, sent))).start()
    worker = received.recv()
    try:
        assert not is_free(tmp_path / "lock")
        holder.kill()
        holder.join()
        assert is_running(worker)
        assert is_free(tmp_path / "lock")
    finally:
        holder.kill()
        os.kill(worker, signal.SIGKILL)


def is_running(pid: int) -> bool:
    os.kill(pid, 0)
    return True


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lock", "busy"):
        assert (tmp_path / "lock").exists()
