"""A watch over processes that work together: when one is gone the others say so and end, whatever they wait for."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from captune.core.distributed import lost_message, rank, size

BEAT = 2.0
SILENCE = 25.0
"""Seconds without a sign of life after which a process counts as gone."""
GRACE = 4.0
"""Seconds for the main thread to notice by itself and end in order."""

_done = threading.Event()
"""Set while there is nothing to watch: all processes have done their work."""


def start(host: str, port: int) -> None:
    """Start to give signs of life to the other processes and to look for theirs."""
    _done.clear()
    threading.Thread(target=_watch, args=(host, port), daemon=True, name="captune-watch").start()


def stop() -> None:
    """Stop watching, once all processes have done their work."""
    _done.set()


def watch_children(children: Sequence[Any]) -> None:
    """Watch the processes that this one started, also before they are connected."""
    threading.Thread(target=_watch_children, args=(children,), daemon=True, name="captune-children").start()


def _watch_children(children: Sequence[Any]) -> None:
    while not _done.wait(1.0):
        for number, child in enumerate(children, start=1):
            code = child.poll()
            if code not in (None, 0):
                _end(f"Process {number} (it ended with code {code})", len(children) + 1)


def _watch(host: str, port: int) -> None:
    """Beat and listen over a connection of its own, so that nothing the main thread waits for is in the way."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    own, n_processes = rank(), size()
    last: dict[int, tuple[int, float]] = {}
    try:
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=SILENCE), wait_for_workers=False)
        while not _done.wait(BEAT):
            store.add(f"captune/{own}", 1)
            for other in set(range(n_processes)) - {own}:
                beats, now = store.add(f"captune/{other}", 0), time.monotonic()
                if other not in last or last[other][0] != beats:
                    last[other] = (beats, now)
                elif now - last[other][1] > SILENCE:
                    _end(f"Process {other}", n_processes)
    except Exception:  # the first process holds the store
        _end("The first process", n_processes)


def _end(who: str, n_processes: int) -> None:
    """Leave the main thread some time to end in order, then end for it."""
    if not _done.wait(GRACE):
        sys.stderr.write(f"error: {lost_message(who, n_processes)}\n")
        sys.stderr.flush()
        os._exit(2)
