"""The one file that knows Lightning Fabric: devices, precision, seeds, ranks and who writes."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from captune.core import _watch, distributed
from captune.core._memory import kept_memory
from captune.core.errors import InputError

if TYPE_CHECKING:
    import torch

console = Console(stderr=True, highlight=False)
"""Progress and remarks go to standard error, so that results on standard output can be piped."""

WAIT = timedelta(hours=12)
"""How long processes wait for one of them, which may be asking a language model; one that is gone is noticed sooner."""

EARLIER = "Before the interruption"
"""What the seconds of an interrupted run are called among those of the steps."""


@dataclass(frozen=True)
class Runtime:
    """Where and how a run computes; made once, passed down."""

    fabric: Any
    seed: int
    workers: int
    quiet: bool = False
    precision: str = "32-true"
    spent: dict[str, float] = field(default_factory=dict, compare=False)
    """Seconds behind each progress bar so far, by its words, and those before an interruption."""
    started: float = field(default_factory=time.monotonic, compare=False)
    """When this process began, by the monotonic clock."""

    @property
    def device(self) -> torch.device:
        """Return the device of this process."""
        return self.fabric.device

    @property
    def is_writer(self) -> bool:
        """Return whether this process writes files and speaks."""
        return bool(self.fabric.is_global_zero)

    def seconds(self) -> float:
        """Return the seconds since the start, with those that an interrupted run had taken before."""
        return time.monotonic() - self.started + self.spent.get(EARLIER, 0.0)

    def say(self, message: str) -> None:
        """Show a remark, once whatever the number of processes."""
        if self.is_writer and not self.quiet:
            console.print(message, markup=False)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work as one of several processes: all end together, and when one is lost the others say so."""
        with distributed.noticing_loss():
            yield
            distributed.gather(None)  # nobody leaves before the writer has written
        _watch.stop()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which frozen encoders compute in the run's precision."""
        return self.fabric.autocast()

    def clip_gradients(self, module: Any, optimizer: Any, most: float) -> None:  # noqa: ANN401 (Fabric wraps both)
        """Scale gradients down to a largest norm."""
        import torch

        if self.precision == "16-mixed":  # the scale of half-precision gradients must be taken out first
            self.fabric.clip_gradients(module, optimizer, max_norm=most, error_if_nonfinite=False)
        else:
            torch.nn.utils.clip_grad_norm_(list(module.parameters()), most)

    def scale_state(self) -> dict[str, float]:
        """Return how far gradients are scaled up in half precision; nothing in other precisions."""
        return dict(self.fabric.strategy.precision.state_dict())

    def restore_scale(self, state: Mapping[str, float]) -> None:
        """Take back what `scale_state` gave."""
        if state:
            counters = {name: int(value) for name, value in state.items() if value == int(value)}
            self.fabric.strategy.precision.load_state_dict({**state, **counters})

    @contextmanager
    def training(self, encodes_images: bool) -> Iterator[None]:
        """Train in the way that suits the student: one that encodes images keeps the memory of its steps."""
        way = kept_memory() if self.device.type == "cpu" else nullcontext()
        with way if encodes_images else self.one_thread():
            yield

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """Compute with one thread: many small matrices lose more to threads that wait than they gain."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @contextmanager
    def seeded(self, *numbers: int) -> Iterator[None]:
        """Draw torch's random numbers from the seed and these numbers, whatever was drawn before or is drawn after."""
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(int(np.random.SeedSequence([self.seed, *numbers]).generate_state(1)[0]))
            yield

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[..., None]]:
        """Show a bar with rate and time left; yields the function that advances it, with a few words if any."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeRemainingColumn(),
        )
        hidden = self.quiet or not self.is_writer or total == 0
        started = time.monotonic()
        with Progress(*columns, console=console, disable=hidden) as bars:
            task = bars.add_task(what, total=total)

            def advance(n: int, words: str = "") -> None:
                bars.update(task, advance=n, description=f"{what} {words}" if words else what)

            try:
                yield advance
            finally:
                self.spent[what] = self.spent.get(what, 0.0) + time.monotonic() - started


def start(
    seed: int = 0,
    workers: int | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    strategy: str = "auto",
    num_nodes: int = 1,
    precision: str = "32-true",
    quiet: bool = False,
) -> Runtime:
    """Start Fabric with its processes and seed everything; on the CPU the same seed gives the same bits.

    `workers` that are not given, or -1, become one for each core, shared among the processes of this machine.
    """
    devices, num_nodes = _launched_size() or (devices, num_nodes)
    n_workers = count_workers(workers, devices)
    fabric = _make_fabric(accelerator, devices, strategy, num_nodes, precision)
    fabric.launch()
    if distributed.size() > 1:
        _watch.start(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    seed_everything(seed)
    return Runtime(fabric, seed, n_workers, quiet, precision)


def _launched_size() -> tuple[int, int] | None:
    """Return how many processes torchrun started on each of how many machines, or None without it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return local, world // local


def _make_fabric(accelerator: str, devices: int, strategy: str, num_nodes: int, precision: str) -> Any:  # noqa: ANN401
    import logging

    from lightning_fabric import Fabric
    from lightning_fabric.plugins import MixedPrecision
    from lightning_fabric.strategies import DDPStrategy
    from lightning_fabric.strategies.launchers import subprocess_script

    for name in ("lightning.fabric", "lightning_fabric"):  # after the import, which sets a level of its own
        logging.getLogger(name).setLevel(logging.WARNING)

    class Mixed(MixedPrecision):
        """Autocast inside the encoders; inputs such as cached embeddings are left in single precision."""

        def convert_input(self, data: Any) -> Any:  # noqa: ANN401
            return data

    if devices * num_nodes > 1 and "LOCAL_RANK" not in os.environ and sys.argv[0] in ("", "-c"):
        raise InputError(
            "Several processes are started by running the same script again, which needs one: call captune from the "
            "command line, from a file, or under torchrun."
        )
    # Fabric's own observer kills without a word; ours says what happened.
    subprocess_script._launch_process_observer = _watch.watch_children
    many = DDPStrategy(timeout=WAIT, find_unused_parameters=True) if devices * num_nodes > 1 else strategy
    try:
        mixed = [] if precision == "32-true" else [Mixed(precision, _device_kind(accelerator))]
        return Fabric(accelerator=accelerator, strategy=many, devices=devices, num_nodes=num_nodes, plugins=mixed)
    except Exception as error:  # Fabric's own sentences name the value; each check has another type of error
        raise InputError(
            f"These devices cannot be used (accelerator {accelerator!r}, devices {devices}, strategy {strategy!r}, "
            f"num_nodes {num_nodes}, precision {precision!r}): {error}"
        ) from error


def _device_kind(accelerator: str) -> str:
    import torch

    if accelerator != "auto":
        return accelerator
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, and ask torch for deterministic kernels."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # libraries may still draw from the legacy state
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


def count_workers(given: int | None, devices: int = 1) -> int:
    """Return how many processes decode images for one of the devices: as given, or for None and -1 its share."""
    if given is None or given == -1:
        return default_workers(devices)
    if given < 0:
        raise InputError(f"workers = {given}: expected 0 or more, or -1 for one process a core.")
    return given


def default_workers(n_processes: int = 1) -> int:
    """Return how many workers decode images for each of some processes: one for each core it has, up to eight."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable // n_processes, 8))


def versions() -> dict[str, str]:
    """Return the versions of what a result depends on, for the run folder."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("captune", "torch", "transformers", "lightning-fabric", "scikit-learn", "numpy", "pillow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours, as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _RateColumn(ProgressColumn):
    """Shows how many images a second are done."""

    def render(self, task: Task) -> Text:
        """Return the rate as text."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "-/s")
