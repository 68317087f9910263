"""A socket, a web application and a clean shutdown: loopback by default, other addresses only with a token."""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from captune.core.errors import CaptuneError, InputError, missing_extra, raise_all

if TYPE_CHECKING:
    import asyncio

    from fastapi import FastAPI
    from uvicorn import Server

TOKEN_VARIABLE = "CAPTUNE_TOKEN"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
SHORTEST_TOKEN = 8
MOST_MEGABYTES = 512
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

    def most_bytes(self, path: str) -> int:
        """Return the largest body that a route accepts."""
        return self.max_bytes * (BATCH_BODIES if path == BATCH else 1)


def say(message: str) -> None:
    """Print a line to standard error; a closed one is no reason to stop serving."""
    with suppress(OSError, ValueError):
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


def nothing(message: str) -> None:
    """Print nothing."""


class Service:
    """A bound socket; `running` serves an application on it."""

    def __init__(
        self,
        host: str,
        port: int,
        limits: Limits | None = None,
        token: str = "",
        say: Callable[[str], None] = say,
        log: Callable[[str], None] = nothing,
        origins: Sequence[str] = (),
    ) -> None:
        self.limits, self.say, self.log, self.host = limits or Limits(), say, log, host
        self.origins = tuple(_check_origin(origin) for origin in origins)
        self.token = token or os.environ.get(TOKEN_VARIABLE, "")
        address = _resolve(host, port)
        self.is_loopback = ipaddress.ip_address(address).is_loopback
        self._check_token()
        self.server: Server | None = None
        self.socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((address, port))
        except OSError as error:
            self.socket.close()
            raise CaptuneError(
                f"The service cannot listen on {host} port {port}: {error.strerror}. Choose another --host or --port."
            ) from error
        self.port = int(self.socket.getsockname()[1])

    @property
    def address(self) -> str:
        """Return the URL of the page."""
        return f"http://{self._name}:{self.port}/"

    @property
    def _name(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def link(self) -> str:
        """Return the URL to open in a browser, with the token if there is one."""
        return self.address + (f"?token={self.token}" if self.token else "")

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """Return the allowed names in Host headers; None allows all."""
        return (*LOOPBACK_NAMES, self._name) if self.is_loopback else None

    @property
    def n_connections(self) -> int:
        """Return the number of open connections."""
        return len(self.server.server_state.connections) if self.server else 0

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _check_token(self) -> None:
        if not self.token and not self.is_loopback:
            raise InputError(
                f"--host {self.host} is reachable from other machines, so it needs a --token: a word of at least "
                f"{SHORTEST_TOKEN} characters that clients must send (or set {TOKEN_VARIABLE})."
            )
        if self.token and (len(self.token) < SHORTEST_TOKEN or not self.token.isalnum() or not self.token.isascii()):
            raise InputError(f"--token: expected at least {SHORTEST_TOKEN} letters and digits.")


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
    gc.collect()
    gc.freeze()  # the model's many objects live until the end; looking at them again and again costs milliseconds
    try:
        with running(service, app):
            service.say(f"{greeting} at {service.link} (press Ctrl-C to stop)")
            stop.wait()
    finally:
        gc.unfreeze()
        for number, handler in before.items():
            signal.signal(number, handler)
    service.say("Stopped.")


def check_installed() -> None:
    """Raise an error with the pip command if the web packages are missing."""
    try:
        import fastapi
        import prometheus_client
        import uvicorn

        assert fastapi
        assert prometheus_client
        assert uvicorn
    except ImportError as error:
        raise missing_extra(str(error.name), "web") from error


def _resolve(host: str, port: int) -> str:
    if not 0 <= port <= 65535:
        raise InputError(f"--port is {port}, expected 0 to 65535.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host!r} is not an address of this machine: {error}. Try 127.0.0.1.") from error
    return str(found[0][4][0])


def _check_origin(origin: str) -> str:
    scheme, _, host = origin.partition("://")
    if scheme not in ("http", "https") or not host or "/" in host:
        raise InputError(f"--allow-origin is {origin!r}, expected a site such as https://example.org, without a path.")
    return origin
