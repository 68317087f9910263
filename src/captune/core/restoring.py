"""A call leaves nothing behind: random states, flags, threads, environment, signal handlers and warning filters."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np


@contextmanager
def unchanged() -> Iterator[None]:
    """Restore the global state of this process afterward, also after an error or an interruption.

    PyTorch's state is restored if it was imported before.
    """
    environment, disabled = dict(os.environ), logging.root.manager.disable
    python_state, numpy_state = random.getstate(), np.random.get_state()
    is_main = threading.current_thread() is threading.main_thread()  # only this thread can set signal handlers
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()} if is_main else {}
    with warnings.catch_warnings(), _torch_state() if "torch" in sys.modules else nullcontext():
        try:
            yield
        finally:
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
            logging.disable(disabled)
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            for number, handler in handlers.items():  # PyTorch's worker processes, for example, leave one for SIGCHLD
                if handler is not None and signal.getsignal(number) is not handler:
                    with suppress(OSError, ValueError):
                        signal.signal(number, handler)


@contextmanager
def _torch_state() -> Iterator[None]:
    import torch

    deterministic, threads, cudnn = torch.get_deterministic_debug_mode(), torch.get_num_threads(), torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark
    memory: Any = torch.utils.deterministic
    is_filled = memory.fill_uninitialized_memory
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(range(torch.cuda.device_count()) if is_used else ()):
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(deterministic)
            cudnn.deterministic, cudnn.benchmark = flags
            memory.fill_uninitialized_memory = is_filled
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


@contextmanager
def quiet_loggers(*names: str, level: int = logging.WARNING) -> Iterator[None]:
    """Show only messages from this level on of these loggers, and of those below them."""
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, before in levels.items():
            logger.setLevel(before)
