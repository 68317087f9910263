"""The one module that knows Lightning Fabric: devices, precision and seeds."""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import cache, cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from captune.core import distributed, launching
from captune.core.errors import InputError
from captune.core.progress import Advance, say, show_progress
from captune.core.restoring import quiet_loggers
from captune.core.settings import WHERE, RunSettings, build

if TYPE_CHECKING:
    import torch

WAIT = timedelta(hours=12)
"""How long a process waits for the others: the first may be asking a language model. A closed connection ends it."""

LARGE_PRODUCT = 1 << 31
"""Multiplications in the largest matrix product of a computation from which threads are worth their waits."""
EARLIER = "Before the interruption"
"""The key in `Runtime.spent` of the seconds before an interruption."""


@dataclass(frozen=True)
class Runtime:
    """The device, precision and seed of a run; created once and passed down."""

    make_fabric: Callable[[], Any]
    device: torch.device
    seed: int
    workers: int
    quiet: bool = False
    """Whether to show neither messages nor progress."""
    precision: str = "32-true"
    shows_progress: bool = True
    spent: dict[str, float] = field(default_factory=dict, compare=False)
    """Seconds spent behind each progress bar, by its title, and before an interruption."""
    started: float = field(default_factory=time.monotonic, compare=False)
    """When this process started, by the monotonic clock."""

    @cached_property
    def fabric(self) -> Any:  # noqa: ANN401 (Fabric has no types)
        """Return Fabric, which trains, spreads work over processes and lowers precision."""
        return self.make_fabric()

    @property
    def is_writer(self) -> bool:
        """Return whether this process writes files and prints messages."""
        return distributed.rank() == 0

    def seconds(self) -> float:
        """Return the seconds since the start, including those before an interruption."""
        return time.monotonic() - self.started + self.spent.get(EARLIER, 0.0)

    def say(self, message: str) -> None:
        """Print a message, once for all processes."""
        if self.is_writer and not self.quiet:
            say(message)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work as one of several processes: all finish together, and a lost process is an error in the others."""
        with distributed.noticing_loss():
            yield
            distributed.gather(None)  # no process ends before the writer has written

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which frozen encoders compute in the run's precision."""
        return nullcontext() if self.precision == "32-true" else self.fabric.autocast()

    def clip_gradients(self, module: Any, optimizer: Any, max_norm: float) -> None:  # noqa: ANN401 (Fabric wraps both)
        """Clip the norm of the gradients."""
        import torch

        if self.precision == "16-mixed":  # Fabric removes the scale of half-precision gradients first
            self.fabric.clip_gradients(module, optimizer, max_norm=max_norm, error_if_nonfinite=False)
        else:
            torch.nn.utils.clip_grad_norm_(list(module.parameters()), max_norm)

    def scale_state(self) -> dict[str, float]:
        """Return the state of the gradient scaler in half precision; empty in other precisions."""
        return dict(self.fabric.strategy.precision.state_dict())

    def restore_scale(self, state: Mapping[str, float]) -> None:
        """Restore the state returned by `scale_state`."""
        if state:
            counters = {name: int(value) for name, value in state.items() if value == int(value)}
            self.fabric.strategy.precision.load_state_dict({**state, **counters})

    @contextmanager
    def seeded(self, *numbers: int) -> Iterator[None]:
        """Seed torch from the run's seed and these numbers; its random state is restored afterward."""
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(int(np.random.SeedSequence([self.seed, *numbers]).generate_state(1)[0]))
            yield

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Advance]:
        """Show the progress of a stage; yields the function that advances it and may append a note to its title."""
        is_shown = self.shows_progress and not self.quiet and self.is_writer and total > 0
        started = time.monotonic()
        try:
            with show_progress(what, total) if is_shown else nullcontext(lambda n, note="": None) as advance:
                yield advance
        finally:
            self.spent[what] = self.spent.get(what, 0.0) + time.monotonic() - started


@contextmanager
def threads_for(multiply_adds: float) -> Iterator[None]:
    """Compute small matrix products in one thread: threads that wait for each other are slow on a busy machine."""
    if multiply_adds > LARGE_PRODUCT:
        yield
        return
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):
        yield


def start(
    settings: RunSettings | Mapping[str, Any] | None = None,
    *,
    quiet: bool = False,
    progress: bool = True,
    **changes: Any,  # noqa: ANN401 (settings)
) -> Runtime:
    """Choose the device of this process and set all random seeds; on the CPU the same seed gives the same bits.

    Other settings than those of devices, workers and the seed are ignored.
    """
    given = {**(asdict(settings) if isinstance(settings, RunSettings) else settings or {}), **changes}
    own = build(RunSettings, {name: given[name] for name in ("seed", "workers", *WHERE) if name in given}, "settings")
    devices, num_nodes = _launched_size() or (own.devices, 1)
    n_workers = default_workers(devices) if own.workers == -1 else own.workers
    if n_workers and not _can_lock():
        n_workers = 0
        if not quiet:
            say("Images are decoded without worker processes, because there is no shared memory here (/dev/shm).")
    make = cache(partial(_start_fabric, own.accelerator, devices, num_nodes, own.precision))
    is_plain = devices * num_nodes == 1 and own.precision == "32-true" and _device_kind(own.accelerator) == "cpu"
    if is_plain and not launching.is_launched():
        import torch

        device = torch.device("cpu")  # importing Fabric takes seconds, and a run without training does not need it
    else:
        device = make().device
    seed_everything(own.seed)
    return Runtime(make, device, own.seed, n_workers, quiet, own.precision, progress)


def _launched_size() -> tuple[int, int] | None:
    """Return the processes per machine and the machines that an elastic launcher started, or None without one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return local, world // local


def _join_restarted_group(device: torch.device) -> None:
    """Join the processes that torchrun restarted; its store still holds the addresses of those that ended."""
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    if not dist.is_initialized():
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore(f"captune-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=WAIT,
        )


def _start_fabric(accelerator: str, devices: int, num_nodes: int, precision: str) -> Any:  # noqa: ANN401
    import lightning_fabric  # noqa: F401 (the import sets the level of its loggers)

    with quiet_loggers("lightning.fabric", "lightning_fabric"):
        fabric = _make_fabric(accelerator, devices, num_nodes, precision)
        if launching.is_restarted() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            _join_restarted_group(fabric.device)
        fabric.launch()
    return fabric


def _make_fabric(accelerator: str, devices: int, num_nodes: int, precision: str) -> Any:  # noqa: ANN401
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import MixedPrecision
    from lightning_fabric.strategies import DDPStrategy

    class Mixed(MixedPrecision):
        """Autocast inside the encoders; inputs such as cached embeddings stay in single precision."""

        def convert_input(self, data: Any) -> Any:  # noqa: ANN401
            return data

    if devices * num_nodes > 1 and not launching.is_launched():
        raise InputError(
            f"devices = {devices}: this call runs in one process. Start the script with torchrun --nproc-per-node "
            f"{devices}, or use captune adapt ... --devices {devices}."
        )
    many = DDPStrategy(timeout=WAIT, find_unused_parameters=True) if devices * num_nodes > 1 else "auto"
    try:
        mixed = [] if precision == "32-true" else [Mixed(precision, _device_kind(accelerator))]
        return Fabric(accelerator=accelerator, strategy=many, devices=devices, num_nodes=num_nodes, plugins=mixed)
    except Exception as error:  # Fabric's messages name the value; their types differ
        raise InputError(
            f"These devices cannot be used (accelerator {accelerator!r}, devices {devices}, precision "
            f"{precision!r}): {error}"
        ) from error


def _device_kind(accelerator: str) -> str:
    import torch

    if accelerator != "auto":
        return accelerator
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, and request deterministic kernels."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # libraries may still draw from the legacy state
    torch.manual_seed(seed)
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import the compiler, for seconds


@cache
def _can_lock() -> bool:
    """Return whether processes can share locks, which needs shared memory that some containers do not have."""
    import multiprocessing

    try:
        _ = [multiprocessing.Lock() for _ in range(64)]  # about as many as eight workers need
    except OSError:
        return False
    return True


def default_workers(n_processes: int = 1) -> int:
    """Return the number of workers of one of several processes: its share of the cores, at most eight."""
    return min(launching.cores_per_process(n_processes), 8)


def versions() -> dict[str, str]:
    """Return the versions of the packages that a result depends on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in (
        "captune",
        "torch",
        "transformers",
        "tokenizers",
        "lightning-fabric",
        "scikit-learn",
        "numpy",
        "pillow",
    ):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
