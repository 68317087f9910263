"""Starting several processes with torch's elastic launcher; what ends one of them becomes an error of the caller."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from captune.core import distributed, errors
from captune.core.errors import CaptuneError, InputError, ProcessLostError, ToldElsewhereError
from captune.core.restoring import unchanged
from captune.core.wording import speaking_flags, speaks_flags

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

T = TypeVar("T")
STARTING = "CAPTUNE_STARTING_PROCESSES"
"""Set in the environment while processes start; a process that has it but no rank is still importing its script."""
INTERRUPTED, UNGUARDED = 130, 78
"""Exit codes of a process that was interrupted, and of one that came upon `launch` while it imported its script."""
GRACE = 10.0
"""Seconds that a process with a lost peer waits for the launcher, which knows what happened to the other one."""
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""glibc's variables (mallopt(3)) for memory that is reused by the next training step; other C libraries ignore them."""


def is_launched() -> bool:
    """Return whether torchrun, srun or `launch` started this process as one of several."""
    return "LOCAL_RANK" in os.environ or int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1


def is_restarted() -> bool:
    """Return whether torchrun started this process again after a failure (`--max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def cores_per_process(n_processes: int) -> int:
    """Return how many of the cores of this machine each process may use, at least one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // n_processes)


def launch(devices: int, num_nodes: int, work: Callable[..., T], *arguments: object) -> T:
    """Call `work` in `devices` processes on each machine and return the result of rank 0; call it here if that is one.

    `work` and its arguments must be picklable. An exception in any process ends all of them and is raised here.
    """
    if devices * num_nodes == 1 or is_launched():
        return work(*arguments)
    if STARTING in os.environ:
        sys.exit(UNGUARDED)
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="captune-") as folder, unchanged():
        logging.disable(logging.CRITICAL)  # the launcher's log repeats the error that is raised, with a traceback
        os.environ.setdefault("OMP_NUM_THREADS", str(cores_per_process(devices)))
        os.environ[STARTING] = "1"
        for name, value in KEEP_FREED_MEMORY.items():
            os.environ.setdefault(name, value)
        config = LaunchConfig(
            min_nodes=num_nodes,
            max_nodes=num_nodes,
            nproc_per_node=devices,
            run_id="captune",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            **_rendezvous(num_nodes),
        )
        try:
            return elastic_launch(config, _work)(work, arguments, speaks_flags()).get(0)
        except ChildFailedError as error:
            raise _cause(error, devices * num_nodes) from None
        except SignalException:
            raise KeyboardInterrupt from None


def _rendezvous(num_nodes: int) -> dict[str, Any]:
    """Return how the machines find each other; one machine needs no address."""
    if num_nodes == 1:
        return {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "localhost"}
    try:
        address, port, rank = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK"))
        return {
            "rdzv_backend": "static",
            "rdzv_endpoint": f"{address}:{port}",
            "rdzv_configs": {"rank": int(rank), "timeout": 900},
        }
    except (KeyError, ValueError) as error:
        raise InputError(
            f"num_nodes = {num_nodes}: set MASTER_ADDR, MASTER_PORT and NODE_RANK on every machine, or use torchrun "
            f"({type(error).__name__}: {error})."
        ) from error


def _work(work: Callable[..., T], arguments: tuple[object, ...], names_flags: bool) -> T | None:
    """Do the work in one of the processes; only the first result travels back."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C reaches the launcher alone, which passes it on once
    try:
        with speaking_flags(names_flags):
            result = work(*arguments)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ToldElsewhereError as error:
        raise error.original from None
    except ProcessLostError:
        time.sleep(GRACE)
        raise
    except CaptuneError as error:
        raise errors.portable(error) from error
    return result if distributed.rank() == 0 else None


def _cause(error: ChildFailedError, n_processes: int) -> BaseException:
    """Return the exception that ended a process, as far as it is known."""
    rank, failure = error.get_first_failure()
    if failure.exitcode == INTERRUPTED:
        return KeyboardInterrupt()
    if failure.exitcode == UNGUARDED:
        return InputError(
            "Several processes import the script that starts them. Call captune under if __name__ == '__main__':, "
            "or run the script with torchrun."
        )
    if not isinstance(failure.message, dict):  # no exception: a signal, or an exit in the middle
        how = f"was killed by {failure.signal_name()}" if failure.exitcode < 0 else f"exited with {failure.exitcode}"
        return ProcessLostError(distributed.lost_message(f"Process {rank}", n_processes, how))
    name, _, text = failure.message["message"].partition(": ")
    kind = BrokenPipeError if name == "BrokenPipeError" else getattr(errors, name, None)
    if kind is not None:
        return kind(text)
    defect = RuntimeError(failure.message["message"])
    defect.__cause__ = RuntimeError(failure.message["extraInfo"]["py_callstack"])
    return defect
