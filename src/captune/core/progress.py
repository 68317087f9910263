"""Progress and messages on standard error: bars in terminals and notebooks, a line now and then in log files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from captune.core.text import printable


class _StandardError(Console):
    """Standard error, so that results on standard output can be piped; one that is full or closed stops no run."""

    def on_broken_pipe(self) -> None:
        """Print nothing more, where rich would exit."""
        self.quiet = True

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 (as rich does)
        """Print, until it fails."""
        try:
            super().print(*objects, **options)
        except OSError:
            self.quiet = True


console = _StandardError(stderr=True, highlight=False)

SECONDS_BETWEEN_LINES = 30.0
Advance: TypeAlias = Callable[..., None]
"""`advance(n, note="")` counts n more and may append a note to the title."""


def say(message: str) -> None:
    """Print a message; in a log file it stays on one line."""
    console.print(printable(message), markup=False, soft_wrap=not console.is_terminal)


@contextmanager
def show_progress(what: str, total: int) -> Iterator[Advance]:
    """Show how far a stage is, in the way that suits where standard error leads."""
    # In a notebook, rich draws bars with ipywidgets.
    is_drawn = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    with _bar(what, total) if is_drawn else _lines(what, total) as advance:
        yield advance


@contextmanager
def _bar(what: str, total: int) -> Iterator[Advance]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        task = bars.add_task(what, total=total)

        def advance(n: int, note: str = "") -> None:
            bars.update(task, advance=n, description=f"{what} {note}" if note else what)

        yield advance


@contextmanager
def _lines(what: str, total: int) -> Iterator[Advance]:
    """Print a line with count and rate at most every half a minute, and one when the stage ends."""
    started = last = time.monotonic()
    done, done_before = 0, 0

    def advance(n: int, note: str = "") -> None:
        nonlocal last, done, done_before
        done += n
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES and done < total:
            speed = (done - done_before) / (now - last)
            left = f", {duration((total - done) / speed)} left" if speed else ""
            title, rate = f"{what} {note}" if note else what, f"{speed:,.{1 if speed < 10 else 0}f}/s"
            say(f"{title}: {done:,}/{total:,}, {rate}{left}")
            last, done_before = now, done

    yield advance
    say(f"{what}: {done:,}/{total:,} in {duration(time.monotonic() - started)}")


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, to read."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
