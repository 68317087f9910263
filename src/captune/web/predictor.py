"""Decoding in guarded processes, and one thread that runs the model on the images that have arrived meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from captune.core.arrays import Floats
from captune.data.decoding import MOST_MEMORY, MOST_PIXELS, CostlyImageError, GuardedDecoder
from captune.data.views import Preprocessing
from captune.results.image_classifier import ImageClassifier

MOST_AT_ONCE = 16
LIGHT_PIXELS, LIGHT_SECONDS, LIGHT_MEMORY = 16_000_000, 1.0, 400_000_000
"""Limits for ordinary images; what exceeds them waits for the process that decodes heavy ones."""
LIGHT_DECODERS = 2
View = NDArray[np.uint8]
Job = tuple[View, Future[Floats]]
"""A decoded image, and its probabilities once they are known."""


class DecodingPool:
    """Some threads with a decoding process each; images wait for the next free one."""

    def __init__(self, seen: Preprocessing, n_decoders: int, max_memory: int, max_pixels: int = MOST_PIXELS) -> None:
        self._seen, self._smallest = seen, 2 * max(*seen.shape, seen.resize)
        self._all = [GuardedDecoder(max_memory, max_pixels) for _ in range(n_decoders)]
        free, self._own = iter(self._all), threading.local()
        self._pool = ThreadPoolExecutor(n_decoders, "captune-decode", lambda: setattr(self._own, "decoder", next(free)))

    async def view(self, content: bytes, seconds: float) -> View:
        """Return what the decoder of a free thread makes of an image in so many seconds."""
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: self._own.decoder.view(content, self._seen, seconds, self._smallest)
        )

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
        self._light = DecodingPool(classifier.preprocessing, LIGHT_DECODERS, LIGHT_MEMORY, LIGHT_PIXELS)
        self._heavy = DecodingPool(classifier.preprocessing, 1, MOST_MEMORY)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._busy_since: float | None = None
        self._worker = threading.Thread(target=self._work, name="captune-model", daemon=True)
        self._worker.start()

    def is_serving(self, patience: float) -> bool:
        """Return whether the model answers: its thread is alive, and no batch takes longer than `patience` seconds."""
        since = self._busy_since
        return self._worker.is_alive() and (since is None or time.monotonic() - since <= patience)

    async def classify(self, content: bytes, seconds: float) -> Floats:
        """Return the probabilities `(classes,)` of an encoded image, or raise what a route can answer."""
        try:
            row = await asyncio.wait_for(self._classify(content, seconds / 2), seconds)
        except asyncio.TimeoutError:
            sentence = "The prediction took too long. Try again later."
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, sentence, {"Retry-After": "5"}) from None
        if not np.isfinite(row).all():
            raise ValueError("the model returned probabilities that are not finite")
        return row

    async def _classify(self, content: bytes, seconds: float) -> Floats:
        try:
            view = await self._light.view(content, min(LIGHT_SECONDS, seconds))
        except CostlyImageError:
            view = await self._heavy.view(content, seconds)
        answer = Future[Floats]()
        self._jobs.put((view, answer))
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """Stop after the current batch."""
        self._light.close()
        self._heavy.close()
        self._jobs.put(None)
        self._worker.join(timeout=10)

    def _work(self) -> None:
        while (first := self._jobs.get()) is not None:
            jobs = [first]
            while len(jobs) < MOST_AT_ONCE and not self._jobs.empty():  # nobody else takes any
                if (following := self._jobs.get()) is None:
                    self._jobs.put(None)
                    break
                jobs.append(following)
            self._busy_since = time.monotonic()
            self._score([job for job in jobs if job[1].set_running_or_notify_cancel()])
            self._busy_since = None

    def _score(self, jobs: Sequence[Job]) -> None:
        """Predict all jobs as one batch or, if that fails, one by one, so that only the bad image fails."""
        if not jobs:
            return
        try:
            rows = self.classifier.score_views(np.stack([view for view, _ in jobs]))
            for (_, answer), row in zip(jobs, rows, strict=True):
                answer.set_result(row)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0][1].set_exception(error)
            else:
                for job in jobs:
                    self._score([job])
