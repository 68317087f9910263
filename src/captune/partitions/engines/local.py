"""Processes of this machine; each loads the model once."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from captune.core.errors import CaptuneError
from captune.partitions.job import Outcome

if TYPE_CHECKING:
    from captune.partitions.worker import Worker

_worker: Worker | None = None


def compute(out: str, pending: Sequence[int], workers: int) -> Iterator[Outcome]:
    """Yield outcomes as partitions are computed; one worker is this process itself."""
    if workers == 1:
        from captune.partitions.worker import run_some

        yield from run_some(out, pending)
        return
    context = multiprocessing.get_context("spawn")
    ranks: Any = context.SimpleQueue()
    for rank in range(workers):
        ranks.put(rank)
    with ProcessPoolExecutor(workers, context, _start, (out, ranks)) as pool:
        waiting = {pool.submit(_run, number): number for number in pending}
        try:
            yield from (future.result() for future in as_completed(waiting))
        except BrokenProcessPool as error:
            raise CaptuneError(
                "A worker was killed, or could not load the model; memory may have run out. What is finished stays: "
                "run the same command again, with fewer workers if memory is short."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _start(out: str, ranks: Any) -> None:  # noqa: ANN401
    global _worker  # noqa: PLW0603 (the state of a worker process)
    threading.Thread(target=_end_with_driver, daemon=True).start()
    rank = ranks.get()
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        import torch

        if torch.cuda.device_count() > 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(rank % torch.cuda.device_count())
    from captune.partitions.worker import Worker

    _worker = Worker(out)


def _end_with_driver() -> None:
    """End this worker when the process that started it is killed, which would leave it waiting forever."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


def _run(number: int) -> Outcome:
    assert _worker is not None
    return _worker.run(number)
