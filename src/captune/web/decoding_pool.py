"""Threads that decode images in guarded processes, for the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from captune.data.guarded_decoding import GuardedDecoder

T = TypeVar("T")


class DecodingPool:
    """Some threads with a decoding process each; images wait for the next free one."""

    def __init__(self, n_decoders: int, max_memory: int, **limits: int) -> None:
        self._own, self._all = threading.local(), list[GuardedDecoder]()
        self._memory, self._limits = max_memory, limits
        self._pool = ThreadPoolExecutor(n_decoders, thread_name_prefix="captune-decode", initializer=self._start)

    async def run(self, work: Callable[[GuardedDecoder], T]) -> T:
        """Return what `work` makes of the decoder of a free thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(self._own.decoder))

    def close(self) -> None:
        """End the processes; images that wait are given up."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for decoder in self._all:
            decoder.close()

    def _start(self) -> None:
        self._own.decoder = GuardedDecoder(self._memory, **self._limits)
        self._all.append(self._own.decoder)
