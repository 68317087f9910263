"""What uvicorn does not bound: the number of connections, and the time until a request has arrived."""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD = "HTTP/1.1 {status}\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: {length}\r\n{more}\r\n"


def _response(status: str, sentence: str, more: str = "") -> bytes:
    body = json.dumps({"error": sentence}).encode("ascii") + b"\n"
    return _HEAD.format(status=status, length=len(body), more=f"{more}Connection: close\r\n").encode("ascii") + body


FULL = _response("503 Service Unavailable", "Too many connections. Try again in a second.", "Retry-After: 1\r\n")


def bounded_protocol(most_connections: int, seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a limit on connections and a deadline for each request's headers."""

    class BoundedProtocol(H11Protocol):
        """One connection."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Accept the connection, or refuse it if there are too many."""
            super().connection_made(transport)
            if len(self.connections) > most_connections:
                transport.write(FULL)
                transport.close()
                return
            self._deadline = self.loop.call_later(seconds, self._check_progress)

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget the deadline."""
            super().connection_lost(exc)
            if hasattr(self, "_deadline"):
                self._deadline.cancel()

        def on_response_complete(self) -> None:
            """Start the deadline of the next request."""
            super().on_response_complete()
            self._deadline.cancel()
            self._deadline = self.loop.call_later(seconds, self._check_progress)

        def eof_received(self) -> bool:  # type: ignore[override]
            """Answer clients that close their side after the request, even if it is incomplete."""
            if not self._is_answering():
                return False
            self.cycle.more_body, self.cycle.keep_alive = False, False
            self.cycle.message_event.set()
            return True

        def send_400_response(self, msg: str) -> None:
            """Answer what is not HTTP with JSON that does not repeat it."""
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_response("400 Bad Request", "The request is not valid HTTP, or too long."))
            self.transport.close()

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _check_progress(self) -> None:
            if not self._is_answering():
                self.transport.close()

    return BoundedProtocol
