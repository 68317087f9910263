"""A call leaves nothing behind: random states, flags, threads, environment, signal handlers and warning filters."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

Restore = Callable[[], None]


@contextmanager
def unchanged() -> Iterator[None]:
    """Restore the global state of this process afterward, also after an error or an interruption.

    PyTorch's state is restored if it was imported before.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        for keep in (_environment, _signal_handlers, _random_states, _torch_state, _disabled_logs):
            stack.callback(keep())
        yield


@contextmanager
def quiet_loggers(*names: str) -> Iterator[None]:
    """Show only warnings of these loggers, and of those below them."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _environment() -> Restore:
    before = dict(os.environ)

    def restore() -> None:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value

    return restore


def _signal_handlers() -> Restore:
    """Keep the handlers; worker processes of PyTorch, for example, leave one for SIGCHLD."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None  # only the main thread can set handlers
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                with suppress(OSError, ValueError):
                    signal.signal(number, handler)

    return restore


def _random_states() -> Restore:
    own, numpy_state = random.getstate(), np.random.get_state()

    def restore() -> None:
        random.setstate(own)
        np.random.set_state(numpy_state)

    return restore


def _torch_state() -> Restore:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return lambda: None
    state, on_gpus = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    deterministic = torch.get_deterministic_debug_mode()
    cudnn, threads = torch.backends.cudnn, torch.get_num_threads()
    flags = {name: getattr(cudnn, name) for name in ("deterministic", "benchmark")}

    def restore() -> None:
        torch.set_rng_state(state)
        torch.cuda.set_rng_state_all(on_gpus)
        torch.set_deterministic_debug_mode(deterministic)
        for name, value in flags.items():
            setattr(cudnn, name, value)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    return restore


def _disabled_logs() -> Restore:
    before = logging.root.manager.disable
    return lambda: logging.disable(before)
