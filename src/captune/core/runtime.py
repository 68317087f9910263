"""Devices, precision, seeds and processes of a run, what it prints, and the global state that it restores."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import platform
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from captune.core import distributed
from captune.core.errors import InputError
from captune.core.settings import WHERE, RunSettings, build
from captune.core.text import printable

if TYPE_CHECKING:
    import torch
    from torch import nn

WAIT = timedelta(hours=12)
"""How long a process waits for the others: the first may be asking a language model. A closed connection ends it."""

LARGE_PRODUCT = 1 << 31
"""Multiplications in the largest matrix product of a computation from which threads are worth their waits."""
EARLIER = "Before the interruption"
"""The key in `Runtime.spent` of the seconds before an interruption."""
SECONDS_BETWEEN_LINES = 30.0
Advance: TypeAlias = Callable[..., None]
"""`advance(n, note="")` counts n more and may append a note to the title."""


@dataclass(frozen=True)
class Runtime:
    """The device, precision and seed of a run; created once and passed down."""

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
    def scaler(self) -> torch.amp.GradScaler:
        """Return what scales the loss, so that no gradient vanishes in half precision; elsewhere it changes nothing."""
        import torch

        return torch.amp.GradScaler(self.device.type, enabled=self.precision == "16-mixed")

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
    def autocast(self) -> Iterator[None]:
        """Let encoders compute in the run's precision."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        half = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(self.precision)
        if half is None:
            yield
            return
        # On a CPU, the fused attention of short sequences is three times slower backward than matrix products.
        attention = sdpa_kernel(SDPBackend.MATH) if self.device.type == "cpu" else nullcontext()
        with torch.autocast(self.device.type, half), attention:
            yield

    def spread(self, module: nn.Module) -> nn.Module:
        """Return a module on the device of this process, whose gradients are averaged over all processes."""
        from torch.nn.parallel import DistributedDataParallel

        module.to(self.device)
        if distributed.size() == 1:
            return module
        return DistributedDataParallel(
            module, None if self.device.type == "cpu" else [self.device], find_unused_parameters=True
        )

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
    if own.devices > 1 and not distributed.is_launched():
        raise InputError(
            f"devices = {own.devices} needs as many processes: captune adapt ... --devices {own.devices}, or torchrun."
        )
    n_processes = int(os.environ.get("LOCAL_WORLD_SIZE", own.devices))
    n_workers = default_workers(n_processes) if own.workers == -1 else own.workers
    if n_workers and not _can_lock():
        n_workers = 0
        if not quiet:
            say("Images are decoded without worker processes, because there is no shared memory here (/dev/shm).")
    device = _choose_device(own.accelerator, n_processes)
    if distributed.is_launched() and int(os.environ["WORLD_SIZE"]) > 1:
        _join_group(device)
    import torch

    random.seed(own.seed)
    np.random.seed(own.seed % 2**32)  # libraries may still draw from the legacy state
    torch.manual_seed(own.seed)
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import the compiler, for seconds
    memory: Any = torch.utils.deterministic
    memory.fill_uninitialized_memory = False  # nothing reads it, and filling takes a tenth of a training step
    return Runtime(device, own.seed, n_workers, quiet, own.precision, progress)


def _choose_device(accelerator: str, n_processes: int) -> torch.device:
    import torch

    own = int(os.environ.get("LOCAL_RANK", "0"))
    found = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": n_processes}
    kind = next(kind for kind, count in found.items() if count) if accelerator == "auto" else accelerator
    if found[kind] < n_processes:
        raise InputError(
            f"accelerator {kind!r}, devices {n_processes}: PyTorch finds {found[kind]}. Use fewer, or accelerator cpu."
        )
    if kind == "cuda":
        torch.cuda.set_device(own)
    return torch.device(kind) if kind == "cpu" else torch.device(kind, own)


def _join_group(device: torch.device) -> None:
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    if dist.is_initialized():
        return
    store, rank, size = next(rendezvous("env://", timeout=WAIT))
    # If torchrun restarted the processes, its store still holds the addresses of those that ended.
    store = PrefixStore(f"captune-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    is_gpu = device.type == "cuda"
    dist.init_process_group("nccl" if is_gpu else "gloo", store=store, rank=rank, world_size=size, timeout=WAIT)
    if is_gpu:
        atexit.register(dist.destroy_process_group)  # NCCL warns otherwise


@cache
def _can_lock() -> bool:
    """Return whether processes can share locks, which needs shared memory that some containers do not have."""
    with suppress(OSError):
        return bool([multiprocessing.Lock() for _ in range(64)])  # about as many as eight workers need
    return False


def default_workers(n_processes: int = 1) -> int:
    """Return the number of workers of one of several processes: its share of the cores, at most eight."""
    return min(distributed.cores_per_process(n_processes), 8)


def versions() -> dict[str, str]:
    """Return the versions of the packages that a result depends on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("captune", "torch", "transformers", "tokenizers", "scikit-learn", "numpy", "pillow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


class _StandardError(Console):
    """Standard error, so that results on standard output can be piped; one that is full or closed stops no run."""

    def on_broken_pipe(self) -> None:
        """Print nothing more, where rich would exit."""
        self.quiet = True

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 (as rich does)
        """Print, until it fails."""
        try:
            super().print(*objects, **options)
        except OSError:
            self.quiet = True


console = _StandardError(stderr=True, highlight=False)


def say(message: str) -> None:
    """Print a message; in a log file it stays on one line."""
    console.print(printable(message), markup=False, soft_wrap=not console.is_terminal)


def show_progress(what: str, total: int) -> AbstractContextManager[Advance]:
    """Show how far a stage is, in the way that suits where standard error leads."""
    # In a notebook, rich draws bars with ipywidgets.
    is_drawn = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    return _bar(what, total) if is_drawn else _lines(what, total)


@contextmanager
def _bar(what: str, total: int) -> Iterator[Advance]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        task = bars.add_task(what, total=total)

        def advance(n: int, note: str = "") -> None:
            bars.update(task, advance=n, description=f"{what} {note}" if note else what)

        yield advance


@contextmanager
def _lines(what: str, total: int) -> Iterator[Advance]:
    started = last = time.monotonic()
    done, done_before = 0, 0

    def advance(n: int, note: str = "") -> None:
        nonlocal last, done, done_before
        done += n
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES and done < total:
            speed = (done - done_before) / (now - last)
            left = f", {duration((total - done) / speed)} left" if speed else ""
            title, rate = f"{what} {note}" if note else what, f"{speed:,.{1 if speed < 10 else 0}f}/s"
            say(f"{title}: {done:,}/{total:,}, {rate}{left}")
            last, done_before = now, done

    yield advance
    say(f"{what}: {done:,}/{total:,} in {duration(time.monotonic() - started)}")


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, to read."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def unchanged() -> Iterator[None]:
    """Restore the global state of this process afterward, also after an error or an interruption.

    PyTorch's state is restored if it was imported before.
    """
    with ExitStack() as afterward:
        afterward.enter_context(warnings.catch_warnings())
        afterward.callback(_set_environment, dict(os.environ))
        afterward.callback(logging.disable, logging.root.manager.disable)
        afterward.callback(random.setstate, random.getstate())
        afterward.callback(np.random.set_state, np.random.get_state())
        if threading.current_thread() is threading.main_thread():  # only this thread can set signal handlers
            afterward.callback(_set_handlers, {number: signal.getsignal(number) for number in signal.valid_signals()})
        if "torch" in sys.modules:
            _restore_torch(afterward)
        yield


def _set_environment(environment: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})


def _set_handlers(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():  # PyTorch's worker processes, for example, leave one for SIGCHLD
        if handler is not None and signal.getsignal(number) is not handler:
            with suppress(OSError, ValueError):
                signal.signal(number, handler)


def _restore_torch(afterward: ExitStack) -> None:
    import torch

    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    afterward.enter_context(torch.random.fork_rng(range(torch.cuda.device_count()) if is_used else ()))
    cudnn, memory, threads = torch.backends.cudnn, torch.utils.deterministic, torch.get_num_threads()
    for place, name in ((cudnn, "deterministic"), (cudnn, "benchmark"), (memory, "fill_uninitialized_memory")):
        afterward.callback(setattr, place, name, getattr(place, name))
    afterward.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())

    def set_threads() -> None:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    afterward.callback(set_threads)
