"""Measures cells, each in a process of its own: its peak memory is known, and a crash costs one cell only.

Run by `runner.py`. Jobs come as JSON lines on standard input, exit codes go to standard output. On Linux the processes
are forks of this one, which has imported everything and holds the dataset and weights of the last cell, so that short
cells take no longer than their work. Elsewhere this process measures one cell and ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from captune.benchmark.measuring import Job, measure, prepare
from captune.core.errors import CaptuneError

INTERRUPTED = 130
CAN_FORK = sys.platform == "linux"


def main() -> NoReturn:
    """Measure one cell after the other until standard input closes."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    on_interrupt = signal.getsignal(signal.SIGINT)
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        if CAN_FORK:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the cell, whose end is awaited
            code = _fork(Job(**order["job"]), order["log"], on_interrupt)
        else:
            code = _measure(Job(**order["job"]), order["log"])
        answers.write(f"{code}\n")
        answers.flush()
        if not CAN_FORK:
            break
    os._exit(0)  # at once: there is nothing to tear down


def _fork(job: Job, log: str, on_interrupt: Any) -> int:  # noqa: ANN401 (a signal handler)
    """Measure a cell in a fork of this process and return its exit code, negative for a signal."""
    _warm_up(job)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGINT, on_interrupt)
            code = _measure(job, log)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _warm_up(job: Job) -> None:
    """Import what cells need, and read dataset and weights; errors are left to the cell."""
    import lightning_fabric  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads do not survive a fork
    with suppress(Exception):
        prepare(str(job.cell["dataset"]), job.root, str(job.settings["backbone"]))
    torch.set_num_threads(n_threads)


def _measure(job: Job, log: str) -> int:
    """Measure a cell with its output in a log file, and return the exit code."""
    with suppress(OSError), open(log, "ab", buffering=0) as output:  # noqa: PTH123 (a descriptor is needed)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    _end_with_parent()
    try:
        measure(job)
    except CaptuneError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except OSError as error:
        place = f"{os.fsdecode(error.filename)!r}" if error.filename is not None else "A file"
        sys.stderr.write(f"error: {place} cannot be read or written: {error.strerror or error}.\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _end_with_parent() -> None:
    """Interrupt this process when standard input closes, because the suite that started it has ended.

    Training treats SIGTERM like Ctrl-C; SIGINT would be ignored if a shell started the suite in the background.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
