"""How much a service takes on: bytes, requests at once and seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from captune.core.errors import raise_all

MOST_MEGABYTES = 512


@dataclass(frozen=True)
class Limits:
    """What one service may be asked for.

    Attributes:
        max_bytes: Largest request body.
        concurrency: Images that are received and classified at the same time; more are told to come back.
        timeout: Seconds in which a request must have arrived, and again in which it is answered.
    """

    max_bytes: int = 20_000_000
    concurrency: int = 16
    timeout: float = 10.0

    def __post_init__(self) -> None:
        problems = []
        if not 1 <= self.max_bytes <= MOST_MEGABYTES * 1_000_000:
            problems.append(f"--max-bytes is {self.max_bytes}, expected 1 to {MOST_MEGABYTES * 1_000_000}.")
        if not 1 <= self.concurrency <= 1024:
            problems.append(f"--concurrency is {self.concurrency}, expected 1 to 1024.")
        if not 0 < self.timeout <= 3600:
            problems.append(f"--timeout is {self.timeout:g}, expected more than 0 and at most 3600 seconds.")
        raise_all(problems, "The service cannot be started like this")

    @property
    def most_connections(self) -> int:
        """Return how many connections are open at the same time; health checks must pass while all images wait."""
        return 4 * self.concurrency + 16


class Refusal(Exception):  # noqa: N818 (an answer to the client, not an error of the service)
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


def busy() -> Refusal:
    """Return the answer for when there is no room left."""
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "Too many images at once. Try again in a second.", Retry_After="1")


def too_slow() -> Refusal:
    """Return the answer for when a prediction does not come in time."""
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "The answer took too long. Try again later.", Retry_After="5")


class Budget:
    """A total that requests share, such as decoded pixels: who finds none left waits for others to give back."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._changed = threading.Condition()

    @contextmanager
    def share(self, amount: int, until: float) -> Iterator[None]:
        """Hold an amount while this lasts; waits for it until a moment of the monotonic clock, then refuses."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.used + amount <= self.total, until - time.monotonic()):
                raise too_slow()
            self.used += amount
        try:
            yield
        finally:
            with self._changed:
                self.used -= amount
                self._changed.notify_all()
