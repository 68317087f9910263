"""The service: loopback by default, a limited number of connections, and a clean shutdown."""

from __future__ import annotations

import ipaddress
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from captune import __version__
from captune.core.errors import CaptuneError, InputError
from captune.results.image_classifier import load
from captune.web.handler import Handler
from captune.web.limits import Limits
from captune.web.page import make_page
from captune.web.predictor import AnyClassifier, Predictor

FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


class Service(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Binds its socket at once, and accepts connections after `open`."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128
    predictor: Predictor
    page: bytes
    facts: dict[str, Any]

    def __init__(self, host: str, port: int, limits: Limits, say: Callable[[str], None] = _say) -> None:
        self.limits, self.say, self.host = limits, say, host
        self.slots = threading.BoundedSemaphore(limits.concurrency)
        self._n_open, self._changed = 0, threading.Condition()
        address = _resolve(host, port)
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.is_loopback = ipaddress.ip_address(address).is_loopback
        super().__init__((address, port), Handler, bind_and_activate=False)
        try:
            self.server_bind()
        except OSError as error:
            self.server_close()
            raise CaptuneError(
                f"The service cannot listen on {host} port {port}: {error.strerror}. Choose another --host or --port."
            ) from error

    @property
    def address(self) -> str:
        """Return the URL of the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    @property
    def n_busy(self) -> int:
        """Return the number of open connections."""
        return self._n_open

    def open(self, predictor: Predictor, title: str) -> None:
        """Start to accept connections."""
        self.predictor = predictor
        self.page = make_page(title, predictor.names, self.limits.max_bytes)
        self.facts = {"classes": len(predictor.names), "version": __version__}
        self.server_activate()

    def is_known_host(self, header: str) -> bool:
        """Return whether a Host header names this machine, which protects against DNS rebinding."""
        if not self.is_loopback:
            return True
        try:
            return urlsplit(f"//{header}").hostname in (*LOOPBACK_NAMES, self.host.lower())
        except ValueError:
            return False

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (types of socketserver)
        """Start a thread for a connection, or refuse it if there are too many."""
        with self._changed:
            is_full = self._n_open >= self.limits.most_connections
            self._n_open += not is_full
        if is_full:
            request.settimeout(0)
            with suppress(OSError):
                request.sendall(FULL)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._leave()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Report an unexpected error in one line."""
        self.say(f"unexpected error: {sys.exc_info()[1]!r}")

    def finish_open(self, seconds: float) -> bool:
        """Wait until all connections are closed, and return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: self._n_open == 0, seconds)

    def _leave(self) -> None:
        with self._changed:
            self._n_open -= 1
            self._changed.notify_all()


@contextmanager
def running(service: Service, classifier: AnyClassifier, title: str) -> Iterator[None]:
    """Serve in the background; open requests are answered before this ends."""
    predictor = Predictor(classifier)
    service.open(predictor, title)
    thread = threading.Thread(target=service.serve_forever, args=(0.1,), name="captune-serve", daemon=True)
    thread.start()
    try:
        yield
    finally:
        service.shutdown()
        thread.join()
        service.server_close()  # no new connections while open requests are answered
        service.finish_open(service.limits.timeout)
        predictor.close()


def serve(run: str | Path, host: str, port: int, limits: Limits, say: Callable[[str], None] = _say) -> None:
    """Serve a run or an export until SIGINT or SIGTERM; the port is bound before the weights are loaded."""
    stop = threading.Event()
    with Service(host, port, limits, say) as service, running(service, load(run), Path(run).resolve().name):
        before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            if not service.is_loopback:
                say(
                    f"warning: {host} is reachable from other machines, without a password or encryption: anyone who "
                    "can reach this port can use the classifier."
                )
            say(f"Serving {len(service.predictor.names)} classes at {service.address} (press Ctrl-C to stop)")
            stop.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    say("Stopped.")


def _resolve(host: str, port: int) -> str:
    if not 0 <= port <= 65535:
        raise InputError(f"--port is {port}, expected 0 to 65535.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host!r} is not an address of this machine: {error}. Try 127.0.0.1.") from error
    return str(found[0][4][0])
