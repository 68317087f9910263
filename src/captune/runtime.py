"""The one file that knows Lightning Fabric: devices, precision, seeds, ranks and who writes."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from captune.errors import InputError

if TYPE_CHECKING:
    import torch

console = Console(stderr=True, highlight=False)
"""Progress and remarks go to standard error, so that results on standard output can be piped."""


@dataclass(frozen=True)
class Runtime:
    """Where and how a run computes; made once, passed down."""

    fabric: Any
    seed: int
    workers: int
    quiet: bool = False
    spent: dict[str, float] = field(default_factory=dict, compare=False)
    """Seconds behind each progress bar so far, by its words."""

    @property
    def device(self) -> torch.device:
        """Return the device of this process."""
        return self.fabric.device

    @property
    def is_writer(self) -> bool:
        """Return whether this process writes files and speaks."""
        return bool(self.fabric.is_global_zero)

    def say(self, message: str) -> None:
        """Show a remark, once whatever the number of processes."""
        if self.is_writer and not self.quiet:
            console.print(message, markup=False)

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
    """Start Fabric and seed everything; on the CPU the same seed gives the same bits.

    `workers` that are not given, or -1, become one for each core.
    """
    import logging

    if workers is not None and workers < -1:
        raise InputError(f"workers = {workers}: expected 0 or more, or -1 for one process a core.")
    for name in ("lightning.fabric", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from lightning_fabric import Fabric

    fabric = Fabric(
        accelerator=accelerator, devices=devices, strategy=strategy, num_nodes=num_nodes, precision=precision
    )
    fabric.launch()
    seed_everything(seed)
    return Runtime(fabric, seed, default_workers() if workers in (None, -1) else workers, quiet)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, and ask torch for deterministic kernels."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # libraries may still draw from the legacy state
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


def default_workers() -> int:
    """Return how many processes decode images by default: one for each core that this process may use, up to eight."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8)


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


class _RateColumn(ProgressColumn):
    """Shows how many images a second are done."""

    def render(self, task: Task) -> Text:
        """Return the rate as text."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "-/s")
