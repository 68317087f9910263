"""Several processes: a command with `--devices N` runs again in N of them, started by torchrun's launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from captune.core.errors import ProcessLostError

OURS = "CAPTUNE_LAUNCHED"
"""Set in the environment of the processes that `run_again` starts."""
GRACE = 10.0
"""Seconds that a failed process waits to be ended by the launcher, which knows what happened to the others."""
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""glibc's variables (mallopt(3)) for memory that is reused by the next training step; other C libraries ignore them."""


def is_launched() -> bool:
    """Return whether torchrun or `run_again` started this process as one of several."""
    return "LOCAL_RANK" in os.environ


def is_restarted() -> bool:
    """Return whether torchrun started this process again after a failure (`--max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def cores_per_process(n_processes: int) -> int:
    """Return how many of the cores of this machine each process may use, at least one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // n_processes)


def run_again(words: Sequence[str], devices: object) -> int | None:
    """Run this command in several processes and return its exit code; None if it should run in this process."""
    if is_launched() or type(devices) is not int or devices < 2:  # a wrong number is reported with all other problems
        return None
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from captune.core.distributed import lost_message
    from captune.core.restoring import unchanged

    with tempfile.TemporaryDirectory(prefix="captune-") as folder, unchanged():
        logging.disable(logging.CRITICAL)  # the launcher's log repeats what the processes say, with a traceback
        for name, value in {"OMP_NUM_THREADS": str(cores_per_process(devices)), **KEEP_FREED_MEMORY, OURS: "1"}.items():
            os.environ.setdefault(name, value)
        # The first process speaks for all: what the others write to standard error goes to files.
        files = ["--log-dir", folder, "--redirects", ",".join(f"{rank}:2" for rank in range(1, devices))]
        options = ["--standalone", "--local-addr", "localhost", "--nproc-per-node", str(devices), *files]
        try:
            parsed = torchrun.parse_args([*options, "-m", "captune.cli", *words])  # type: ignore[no-untyped-call]
            torchrun.run(parsed)  # type: ignore[no-untyped-call]
        except SignalException:
            raise KeyboardInterrupt from None
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode < 0:
                how = f"was killed by {failure.signal_name()}"
                raise ProcessLostError(lost_message(f"Process {rank}", devices, how)) from None
            for log in Path(folder).rglob(f"{rank}/stderr.log"):  # that of the first is shown already
                sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
            return failure.exitcode
    return 0


def follow_launcher() -> None:
    """End with the process that started this one, if that was `run_again`."""
    if OURS in os.environ and is_launched() and sys.platform == "linux":
        from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

        _prctl_pr_set_pdeathsig(signal.SIGINT)


def wait_for_launcher(is_lost: bool) -> None:
    """Leave it to the launcher or the first process to say what went wrong, if they can."""
    if OURS in os.environ and is_launched() and (is_lost or os.environ["LOCAL_RANK"] != "0"):
        time.sleep(GRACE)
