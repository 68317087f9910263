"""A socket, a web application and a clean shutdown: loopback by default, other addresses only with a token."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from captune.core.errors import CaptuneError, InputError, raise_all

if TYPE_CHECKING:
    import asyncio

    from fastapi import FastAPI
    from uvicorn import Server

TOKEN_VARIABLE = "CAPTUNE_TOKEN"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
SHORTEST_TOKEN = 8
MOST_BYTES = 512_000_000
BODIES_AT_ONCE = 16
"""Bodies of the largest size that are kept in memory at the same time."""
BATCH = "/predict/batch"
BATCH_BODIES = 8
"""A request for several images may have so many times the bytes of one."""


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
        ranges = {"max_bytes": (1, MOST_BYTES), "concurrency": (1, 1024), "timeout": (0.01, 3600)}
        problems = (
            f"--{name.replace('_', '-')} is {getattr(self, name)}, expected {low} to {high}."
            for name, (low, high) in ranges.items()
            if not low <= getattr(self, name) <= high
        )
        raise_all(problems, "Invalid service settings")

    @property
    def most_connections(self) -> int:
        """Return the limit on open connections, which leaves room for health checks."""
        return 2 * self.concurrency + 16

    def most_bytes(self, path: str) -> int:
        """Return the largest body that a route accepts."""
        return self.max_bytes * (BATCH_BODIES if path == BATCH else 1)


def say(message: str) -> None:
    """Print a line to standard error; a closed one is no reason to stop serving."""
    with suppress(OSError, ValueError):
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


class Service:
    """A bound socket; `running` serves an application on it.

    `hosts` are the allowed names in Host headers (None allows all), and `link` is the URL with the token.
    """

    def __init__(
        self,
        host: str,
        port: int,
        limits: Limits | None = None,
        token: str = "",
        say: Callable[[str], None] = say,
        log: Callable[[str], None] | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        self.limits, self.say, self.log = limits or Limits(), say, log or (lambda line: None)
        self.origins = tuple(map(_check_origin, origins))
        self.token = token or os.environ.get(TOKEN_VARIABLE, "")
        family, address = _resolve(host, port)
        self.is_loopback = ipaddress.ip_address(address).is_loopback
        if not self.token and not self.is_loopback:
            raise InputError(
                f"--host {host} is reachable from other machines, so it needs a --token: a word of at least "
                f"{SHORTEST_TOKEN} characters that clients must send (or set {TOKEN_VARIABLE})."
            )
        if self.token and not re.fullmatch(f"[A-Za-z0-9]{{{SHORTEST_TOKEN},}}", self.token):
            raise InputError(f"--token: expected at least {SHORTEST_TOKEN} letters and digits.")
        self.server: Server | None = None
        try:
            self.socket = socket.create_server((address, port), family=family)
        except OSError as error:
            raise CaptuneError(
                f"The service cannot listen on {host} port {port}: {error.strerror}. Choose another --host or --port."
            ) from error
        self.port = int(self.socket.getsockname()[1])
        name = f"[{host}]" if ":" in host else host
        self.hosts = (*LOOPBACK_NAMES, name) if self.is_loopback else None
        self.address = f"http://{name}:{self.port}/"
        self.link = self.address + (f"?token={self.token}" if self.token else "")

    @property
    def n_connections(self) -> int:
        """Return the number of open connections."""
        return len(self.server.server_state.connections) if self.server else 0

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@contextmanager
def running(service: Service, app: FastAPI) -> Iterator[None]:
    """Serve an application in the background; open requests are answered before this ends."""
    from uvicorn import Config, Server

    from captune.web.middleware import Metrics, with_middleware

    limits = service.limits
    app.state.metrics, app.state.service = Metrics(), service
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the middleware logs instead
    config = Config(
        with_middleware(app, service, app.state.metrics),
        http=_protocol(limits.timeout),
        limit_concurrency=limits.most_connections,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=1024,
        timeout_graceful_shutdown=max(1, int(limits.timeout) + 1),
    )
    service.server = server = Server(config)
    thread = threading.Thread(target=server.run, args=([service.socket],), name="captune-serve", daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        thread.join()


def _protocol(seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a deadline for the headers of a request, which uvicorn does not have."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class ImpatientProtocol(H11Protocol):
        """One connection."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_after, self.cycle)

        def on_response_complete(self) -> None:
            self.loop.call_later(seconds, self._close_after, self.cycle)
            super().on_response_complete()

        def _close_after(self, last: object) -> None:
            if self.cycle is last:  # no other request has arrived
                self.transport.close()

    return ImpatientProtocol


def serve_until_stopped(service: Service, app: FastAPI, greeting: str) -> None:
    """Serve an application until SIGINT or SIGTERM."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with running(service, app):
            service.say(f"{greeting} at {service.link} (press Ctrl-C to stop)")
            stop.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    service.say("Stopped.")


def _resolve(host: str, port: int) -> tuple[int, str]:
    if not 0 <= port <= 65535:
        raise InputError(f"--port is {port}, expected 0 to 65535.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host!r} is not an address of this machine: {error}. Try 127.0.0.1.") from error
    return found[0][0], str(found[0][4][0])


def _check_origin(origin: str) -> str:
    scheme, _, host = origin.partition("://")
    if scheme not in ("http", "https") or not host or "/" in host:
        raise InputError(f"--allow-origin is {origin!r}, expected a site such as https://example.org, without a path.")
    return origin
