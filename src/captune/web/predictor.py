"""One thread runs the model; images that arrive meanwhile form the next batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from PIL.Image import Image

from captune.core.arrays import Floats
from captune.data.decoding import MOST_PIXELS, decode, measure
from captune.web.limits import Budget, too_slow

MOST_AT_ONCE = 16


class AnyClassifier(Protocol):
    """The part of a classifier that the service uses."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the class names."""

    def predict_proba(self, images: Sequence[object]) -> Floats:
        """Return probabilities `(images, classes)`."""


@dataclass(frozen=True, eq=False)
class _Job:
    image: Image
    answer: Future[Floats] = field(default_factory=Future)


class Predictor:
    """Classifies images for many threads.

    Only one thread runs the model, because its libraries keep threads and memory for each thread that calls them.
    """

    def __init__(self, classifier: AnyClassifier) -> None:
        self.classifier = classifier
        self.pixels = Budget(MOST_PIXELS)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="captune-model", daemon=True)
        self._worker.start()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the class names."""
        return self.classifier.names

    def classify(self, content: bytes, seconds: float) -> Floats:
        """Return the probabilities `(classes,)` of an encoded image.

        Raises:
            UnreadableImageError: The content cannot be decoded.
            Refusal: The prediction took too long.
        """
        until = time.monotonic() + seconds
        width, height = measure(content)
        with self.pixels.share(width * height, until):
            job = _Job(decode(content))
            self._jobs.put(job)
            try:
                return job.answer.result(until - time.monotonic())
            except LateError:
                job.answer.cancel()
                raise too_slow() from None

    def close(self) -> None:
        """Stop the thread after its current batch."""
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
            self._score([job for job in jobs if job.answer.set_running_or_notify_cancel()])

    def _score(self, jobs: Sequence[_Job]) -> None:
        """Predict all jobs as one batch or, if that fails, one by one, so that only the bad image fails."""
        if not jobs:
            return
        try:
            rows = self.classifier.predict_proba([job.image for job in jobs])
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
            else:
                for job in jobs:
                    self._score([job])
            return
        for job, row in zip(jobs, rows, strict=True):
            job.answer.set_result(row)
