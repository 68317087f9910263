"""Several processes as one: sums over all of them, rows that each computed a share of, and payloads of the first."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from captune.core.arrays import Bools, Floats, row_parts
from captune.core.errors import CaptuneError, ProcessLostError, ToldElsewhereError
from captune.core.text import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
Payload = tuple[dict[str, "Tensor"], Any]
"""What is sent between processes: tensors by name, and a value that JSON can hold; nothing is unpickled."""
NETWORK_TERMS = ("gloo", "nccl", "connection", "socket", "peer", "timed out", "timeout", "broken pipe")


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

    if size() == 1 or rows.size == 0:
        return
    rows[~is_mine] = 0
    bits = rows.view(np.int32)  # the sum of an integer and zeros keeps every bit
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
def noticing_loss() -> Iterator[None]:
    """Turn network errors into a ProcessLostError: they mean that another process has ended."""
    try:
        yield
    except RuntimeError as error:
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
    """Return the bytes of the process with rank `source`."""
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
    """Return the device that the backend sends tensors from."""
    import torch
    import torch.distributed as dist

    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
