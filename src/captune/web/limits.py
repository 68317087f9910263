"""Limits of the service: bytes, concurrent requests and seconds."""

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
    """Limits of the service.

    Attributes:
        max_bytes: Largest request body.
        concurrency: Images that are received and classified at the same time; more are refused.
        timeout: Seconds to receive a request, and seconds to answer it.
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
        raise_all(problems, "Invalid service settings")

    @property
    def most_connections(self) -> int:
        """Return the limit on open connections, which leaves room for health checks."""
        return 4 * self.concurrency + 16


class Refusal(Exception):  # noqa: N818 (a response, not an error of the service)
    """A request that is refused, with a status and a message."""

    def __init__(self, status: HTTPStatus, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}


def busy() -> Refusal:
    """Return the response at the limit on concurrent images."""
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "Too many images at once. Try again in a second.", Retry_After="1")


def too_slow() -> Refusal:
    """Return the response if a prediction takes too long."""
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "The prediction took too long. Try again later.", Retry_After="5")


class Budget:
    """A total shared by all requests, such as decoded pixels; requests wait until enough is free."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._changed = threading.Condition()

    @contextmanager
    def share(self, amount: int, until: float) -> Iterator[None]:
        """Reserve an amount, waiting until the given time of the monotonic clock."""
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
