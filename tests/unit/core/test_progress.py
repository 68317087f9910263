"""Progress in log files, terminals and notebooks."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from captune.core import runtime


class Clock:
    """Stands for the time module; tests move it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    monkeypatch.setattr(runtime, "console", Console(file=file, highlight=False, width=80))
    return file


def test_a_log_file_gets_a_line_every_half_a_minute(log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(runtime, "time", clock)
    with runtime.show_progress("Embedding images", 12_000) as advance:
        for _ in range(1200):  # ten images a second
            clock.now += 1
            advance(10)
    lines = log.getvalue().splitlines()
    assert len(lines) == 1200 // 30
    assert lines[0] == "Embedding images: 300/12,000, 10/s, 20 min left"
    assert lines[-1] == "Embedding images: 12,000/12,000 in 20 min"


def test_a_slow_stage_shows_its_note_and_its_rate(log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(runtime, "time", clock)
    with runtime.show_progress("Training", 100) as advance:
        advance(50)  # continued from a checkpoint
        clock.now += 40
        advance(10, "epoch 3")
        clock.now += 10
        advance(40)
    assert log.getvalue().splitlines() == [
        "Training epoch 3: 60/100, 1.5/s, 27 s left",
        "Training: 100/100 in 50 s",
    ]


def test_a_stage_that_fails_does_not_claim_to_have_ended(log: io.StringIO) -> None:
    with pytest.raises(RuntimeError), runtime.show_progress("Training", 3):
        raise RuntimeError
    assert log.getvalue() == ""


def test_messages_stay_on_one_line_in_a_log_file(log: io.StringIO) -> None:
    runtime.say("word " * 40)
    assert log.getvalue().splitlines() == ["word " * 40]


@pytest.mark.parametrize(("has_widgets", "is_bar"), [(True, True), (False, False)])
def test_a_notebook_draws_bars_only_with_widgets(
    monkeypatch: pytest.MonkeyPatch, log: io.StringIO, has_widgets: bool, is_bar: bool
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(runtime.console, "is_jupyter", True)
    monkeypatch.setattr(runtime, "find_spec", lambda name: object() if has_widgets else None)
    monkeypatch.setattr(runtime, "_bar", lambda what, total: drawn.append(what) or runtime._lines(what, total))
    monkeypatch.setattr(runtime, "say", drawn.append if not is_bar else lambda message: None)
    with runtime.show_progress("Doing", 2) as advance:
        advance(2)
    assert drawn == (["Doing"] if is_bar else ["Doing: 2/2 in 0 s"])


def test_a_terminal_draws_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(runtime, "console", Console(file=file, force_terminal=True, width=100))
    with runtime.show_progress("Doing", 3) as advance:
        advance(3, "well")
    assert "Doing well" in file.getvalue()
    assert "3/3" in file.getvalue()


def test_progress_is_hidden_and_messages_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    engine = runtime.start(progress=False)
    engine.say("hello")
    with engine.progress("Doing", 3) as advance:
        advance(3)
    assert capsys.readouterr().err == "hello\n"
    assert "Doing" in engine.spent
