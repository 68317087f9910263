"""Limits of the service: bytes, concurrent requests and seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from captune.core.errors import raise_all

MOST_MEGABYTES = 512
BODIES_AT_ONCE = 16
"""Bodies of the largest size that are kept in memory at the same time."""


@dataclass(frozen=True)
class Limits:
    """Limits of the service.

    Attributes:
        max_bytes: Largest request body; all bodies together have at most 16 times as many bytes.
        concurrency: Images that are received and classified at the same time; more are refused.
        timeout: Seconds to receive a request, and seconds to answer it.
    """

    max_bytes: int = 20_000_000
    concurrency: int = 256
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
        return 2 * self.concurrency + 16


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
    """A total that requests share, such as images at once or bytes in memory; what does not fit is refused."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    @contextmanager
    def share(self, amount: int) -> Iterator[None]:
        """Reserve an amount; only called in the thread of the event loop."""
        if self.used + amount > self.total:
            raise busy()
        self.used += amount
        try:
            yield
        finally:
            self.used -= amount
