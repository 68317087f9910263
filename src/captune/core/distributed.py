"""Several processes as one: sums over all of them, rows that each computed a part of, and decisions of the first."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from captune.core.arrays import Bools, Floats
from captune.core.errors import CaptuneError, ProcessLostError, ToldElsewhereError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
Parcel = tuple[dict[str, "Tensor"], Any]
"""What travels between processes: tensors by name, and facts that JSON can hold; nothing is unpickled."""
BYTES_AT_ONCE = 1 << 26
NETWORK_WORDS = ("gloo", "nccl", "connection", "socket", "peer", "timed out", "timeout", "broken pipe")


def rank() -> int:
    """Return the number of this process, 0 for the first or only one."""
    if "torch" not in sys.modules:  # nothing has joined processes, and asking would cost seconds
        return 0
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def size() -> int:
    """Return how many processes work together."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def part(items: T) -> T:
    """Return this process's items of a list or array: every n-th of them, so that no other process has the same."""
    return items[rank() :: size()]  # type: ignore[index]


def add_up(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, without gradients; alone, the tensor itself."""
    import torch.distributed as dist

    if size() == 1:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def mean(tensor: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes, without gradients; alone, the tensor itself."""
    return tensor if size() == 1 else add_up(tensor) / size()


def is_any(flag: bool) -> bool:
    """Return whether any process says yes."""
    import torch

    return flag if size() == 1 else bool(add_up(torch.tensor([int(flag)], device=_device())))


def merge_rows(rows: Floats, is_mine: Bools) -> None:
    """Fill in place the rows `(rows, width)` that other processes computed; each row must have one owner at most."""
    import torch
    import torch.distributed as dist

    if size() == 1 or rows.size == 0:
        return
    rows[~is_mine] = 0
    bits = rows.view(np.int32)  # added as integers to zeros, so that every bit arrives as it was
    step = max(1, BYTES_AT_ONCE // (rows.itemsize * rows.shape[1]))
    for start in range(0, len(rows), step):
        chunk = torch.from_numpy(bits[start : start + step]).to(_device())
        dist.all_reduce(chunk)
        bits[start : start + step] = chunk.cpu().numpy()


def gather(facts: T) -> list[T]:
    """Return what every process says, by its number; facts are anything that JSON can hold."""
    if size() == 1:
        return [facts]
    words = json.dumps(facts).encode()
    return [json.loads(_broadcast(words if rank() == source else b"", source)) for source in range(size())]


def from_first(make: Callable[[], Parcel]) -> Parcel:
    """Return what the first process makes; only it does the work, and its error ends the others too."""
    from safetensors.torch import load, save

    if size() == 1:
        return make()
    problem: CaptuneError | None = None
    facts, content = b"", b""
    if rank() == 0:
        try:
            tensors, made = make()
            facts = json.dumps({"facts": made}).encode()
            content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        except CaptuneError as error:
            problem = error
            facts = json.dumps({"problem": str(error)}).encode()
    note = json.loads(_broadcast(facts, 0))
    if problem is not None:
        raise problem
    if "problem" in note:
        raise ToldElsewhereError(note["problem"])
    return load(_broadcast(content, 0)), note["facts"]


@contextmanager
def noticing_loss() -> Iterator[None]:
    """Turn the network's errors into one sentence: they mean that another process is gone."""
    try:
        yield
    except RuntimeError as error:
        if size() == 1 or not any(word in str(error).lower() for word in NETWORK_WORDS):
            raise
        raise ProcessLostError(lost_message("Another process", size())) from error


def lost_message(who: str, n_processes: int) -> str:
    """Return what to tell when a process is gone."""
    return (
        f"{who} of {n_processes} is gone, so this one ends too. Its own message, if any, says why; often memory ran "
        "out. Nothing that was saved is lost: go on with the same command and --resume, with any number of processes."
    )


def _broadcast(content: bytes, source: int) -> bytes:
    """Return the bytes that one process has."""
    import torch
    import torch.distributed as dist

    length = torch.tensor([len(content)], dtype=torch.int64, device=_device())
    dist.broadcast(length, source)
    n_bytes = int(length)
    if rank() == source:
        sent = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8).to(_device())
    else:
        sent = torch.empty(max(n_bytes, 1), dtype=torch.uint8, device=_device())
    for start in range(0, n_bytes, BYTES_AT_ONCE):
        dist.broadcast(sent[start : start + BYTES_AT_ONCE], source)
    return content if rank() == source else sent[:n_bytes].cpu().numpy().tobytes()


def _device() -> torch.device:
    """Return where tensors must be to travel."""
    import torch
    import torch.distributed as dist

    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
