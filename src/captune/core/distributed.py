"""Several processes as one: sums, rows that each computed a share of, payloads of the first; torchrun starts them."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from captune.core.errors import CaptuneError, ProcessLostError, ToldElsewhereError
from captune.core.text import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from captune.core.arrays import Bools, Floats

T = TypeVar("T")
Payload = tuple[dict[str, "Tensor"], Any]
"""What is sent between processes: tensors by name, and a value that JSON can hold; nothing is unpickled."""
NETWORK_TERMS = ("gloo", "nccl", "connection", "socket", "peer", "timed out", "timeout", "broken pipe")
OURS = "CAPTUNE_LAUNCHED"
"""Set in the environment of the processes that `run_again` starts."""
GRACE = 10.0
"""Seconds that a failed process waits to be ended by the launcher, which knows what happened to the others."""
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""glibc's variables (mallopt(3)) for memory that is reused by the next training step; other C libraries ignore them."""


def rank() -> int:
    """Return the rank of this process, 0 for the first or only one."""
    if "torch" not in sys.modules:  # there is no process group, and importing torch would take seconds
        return 0
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def size() -> int:
    """Return how many processes work together."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def part(items: T) -> T:
    """Return the items of a list or array that belong to this process: every n-th one."""
    return items[rank() :: size()]  # type: ignore[index]


def add_up(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, without gradients; alone, the tensor itself."""
    import torch.distributed as dist

    if size() == 1:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def is_any(flag: bool) -> bool:
    """Return whether the flag is set in any process."""
    import torch

    return flag if size() == 1 else bool(add_up(torch.tensor([int(flag)], device=_device())))


def merge_rows(rows: Floats, is_mine: Bools) -> None:
    """Fill in place the rows `(rows, width)` that other processes computed; each row has at most one owner."""
    import torch
    import torch.distributed as dist

    from captune.core.arrays import row_parts

    if size() == 1 or rows.size == 0:
        return
    rows[~is_mine] = 0
    bits = rows.view("int32")  # the sum of an integer and zeros keeps every bit
    for part in row_parts(*rows.shape):
        chunk = torch.from_numpy(bits[part]).to(_device())
        dist.all_reduce(chunk)
        bits[part] = chunk.cpu().numpy()


def gather(value: T) -> list[T]:
    """Return the values of all processes, by rank; a value is anything that JSON can hold."""
    if size() == 1:
        return [value]
    content = json.dumps(value).encode()
    return [json.loads(_broadcast(content if rank() == source else b"", source)) for source in range(size())]


def from_first(make: Callable[[], Payload]) -> Payload:
    """Return the payload that the first process makes; if it raises an error, so do the others."""
    from safetensors.torch import load, save

    if size() == 1:
        return make()
    error: CaptuneError | None = None
    header, content = b"", b""
    if rank() == 0:
        try:
            tensors, value = make()
            header = json.dumps({"value": value}).encode()
            content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        except CaptuneError as raised:
            error = raised
            header = json.dumps({"error": str(error)}).encode()
    received = json.loads(_broadcast(header, 0))
    if error is not None:
        raise error
    if "error" in received:
        raise ToldElsewhereError(received["error"])
    return load(_broadcast(content, 0)), received["value"]


@contextmanager
def together() -> Iterator[None]:
    """Work as one of several processes: all finish together, and a lost process is an error in the others."""
    try:
        yield
        gather(None)  # no process ends before the writer has written
    except RuntimeError as error:  # network errors mean that another process has ended
        if size() == 1 or not any(term in str(error).lower() for term in NETWORK_TERMS):
            raise
        raise ProcessLostError(lost_message("Another process", size(), "ended unexpectedly")) from error


def lost_message(which: str, n_processes: int, how: str) -> str:
    """Return the message for a process that ended before its work was done."""
    return (
        f"{which} of {n_processes} {how}, often because memory ran out. Everything saved so far is kept: continue with "
        f"{option('resume', True)}, with any number of processes."
    )


def _broadcast(content: bytes, source: int) -> bytes:
    import torch
    import torch.distributed as dist

    length = torch.tensor([len(content)], dtype=torch.int64, device=_device())
    dist.broadcast(length, source)
    if not length:
        return b""
    if rank() == source:
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(_device())
    else:
        sent = torch.empty(int(length), dtype=torch.uint8, device=_device())
    dist.broadcast(sent, source)
    return content if rank() == source else sent.cpu().numpy().tobytes()


def _device() -> torch.device:
    import torch
    import torch.distributed as dist

    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


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

    from captune.core.runtime import unchanged

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
