"""Decoding in guarded processes, and one thread that runs the model on the images that have arrived meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from queue import Empty, SimpleQueue

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from captune.core.arrays import Floats
from captune.data.decoding import MOST_MEMORY, MOST_PIXELS, CostlyImageError, GuardedDecoder
from captune.results.image_classifier import ImageClassifier

MOST_AT_ONCE = 16
LIGHT_PIXELS, LIGHT_SECONDS, LIGHT_MEMORY = 16_000_000, 1.0, 400_000_000
"""Limits for ordinary images; what exceeds them waits for the process that decodes heavy ones."""
LIGHT_DECODERS = 2


def too_slow() -> HTTPException:
    """Return the response if a prediction takes too long."""
    sentence = "The prediction took too long. Try again later."
    return HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, sentence, {"Retry-After": "5"})


@dataclass(frozen=True, eq=False)
class _Job:
    view: NDArray[np.uint8]
    answer: Future[Floats] = field(default_factory=Future)


class DecodingPool:
    """Some threads with a decoding process each; images wait for the next free one."""

    def __init__(self, n_decoders: int, max_memory: int, max_pixels: int = MOST_PIXELS) -> None:
        self._all = [GuardedDecoder(max_memory, max_pixels) for _ in range(n_decoders)]
        free, self._own = iter(self._all), threading.local()
        self._pool = ThreadPoolExecutor(n_decoders, "captune-decode", lambda: setattr(self._own, "decoder", next(free)))

    async def run(self, work: Callable[[GuardedDecoder], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Return what `work` makes of the decoder of a free thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(self._own.decoder))

    def close(self) -> None:
        """End the processes; images that wait are given up."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for decoder in self._all:
            decoder.close()


class Predictor:
    """Classifies encoded images.

    Only one thread runs the model, because its libraries keep threads and memory for each thread that calls them.
    Images are decoded in other processes, so that none of them can hold the service. Large or slow images have a
    process of their own, so that they do not hold the others.
    """

    def __init__(self, classifier: ImageClassifier) -> None:
        self.classifier, self.names = classifier, classifier.names
        self._light = DecodingPool(LIGHT_DECODERS, LIGHT_MEMORY, max_pixels=LIGHT_PIXELS)
        self._heavy = DecodingPool(1, MOST_MEMORY)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._busy_since: float | None = None
        self._worker = threading.Thread(target=self._work, name="captune-model", daemon=True)
        self._worker.start()

    def is_serving(self, patience: float) -> bool:
        """Return whether the model answers: its thread is alive, and no batch takes longer than `patience` seconds."""
        since = self._busy_since
        return self._worker.is_alive() and (since is None or time.monotonic() - since <= patience)

    async def classify(self, content: bytes, seconds: float) -> Floats:
        """Return the probabilities `(classes,)` of an encoded image.

        Raises:
            UnreadableImageError: The content cannot be decoded.
            HTTPException: The prediction took too long.
            ValueError: The probabilities are not finite.
        """
        until = time.monotonic() + seconds
        try:
            view = await self._decode(self._light, content, until, min(LIGHT_SECONDS, seconds / 2))
        except CostlyImageError:
            view = await self._decode(self._heavy, content, until, seconds / 2)
        job = _Job(view)
        self._jobs.put(job)
        try:
            row = await asyncio.wait_for(asyncio.wrap_future(job.answer), until - time.monotonic())
        except asyncio.TimeoutError:
            raise too_slow() from None
        if not np.isfinite(row).all():
            raise ValueError("the model returned probabilities that are not finite")
        return row

    async def _decode(self, pool: DecodingPool, content: bytes, until: float, most: float) -> NDArray[np.uint8]:
        preprocessing = self.classifier.preprocessing
        smallest = 2 * max(*preprocessing.shape, preprocessing.resize)

        def view(decoder: GuardedDecoder) -> NDArray[np.uint8]:
            left = until - time.monotonic()
            if left <= 0:
                raise too_slow()
            return decoder.view(content, preprocessing, min(most, left), smallest)

        return await pool.run(view)

    def close(self) -> None:
        """Stop after the current batch."""
        self._light.close()
        self._heavy.close()
        self._jobs.put(None)
        self._worker.join(timeout=10)

    def _work(self) -> None:
        while (first := self._jobs.get()) is not None:
            jobs = [first]
            try:
                while len(jobs) < MOST_AT_ONCE:
                    following = self._jobs.get_nowait()
                    if following is None:
                        self._jobs.put(None)
                        break
                    jobs.append(following)
            except Empty:
                pass
            self._busy_since = time.monotonic()
            self._score([job for job in jobs if job.answer.set_running_or_notify_cancel()])
            self._busy_since = None

    def _score(self, jobs: Sequence[_Job]) -> None:
        """Predict all jobs as one batch or, if that fails, one by one, so that only the bad image fails."""
        if not jobs:
            return
        try:
            rows = self.classifier.score_views(np.stack([job.view for job in jobs]))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
            else:
                for job in jobs:
                    self._score([job])
            return
        for job, row in zip(jobs, rows, strict=True):
            job.answer.set_result(row)
