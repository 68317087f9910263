"""The responses of the service: JSON or the page, without internal details."""

from __future__ import annotations

import io
import json
import os
import socket
import time
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from captune import __version__
from captune.data.decoding import UnreadableImageError
from captune.results.image_classifier import top_k
from captune.web.body import DeadlineReader, announced_length, image_content, read_body
from captune.web.limits import Refusal, busy
from captune.web.page import PAGE_POLICY

if TYPE_CHECKING:
    from captune.web.server import Service

PATHS = {"/": ("GET", "HEAD"), "/health": ("GET", "HEAD"), "/predict": ("POST",)}
DEFAULT_TOP_K = 5
LINGER_SECONDS = 1.0
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, the Origin of our own form would be "null"
    "Cross-Origin-Resource-Policy": "same-origin",
}
JSON_POLICY = "default-src 'none'; frame-ancestors 'none'"


class Handler(BaseHTTPRequestHandler):
    """Handles one connection with one request."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # invalid requests get a status line too
    server: Service

    def setup(self) -> None:
        """Start the deadline for reading the request."""
        super().setup()
        self.rfile.close()
        deadline = DeadlineReader(self.connection, time.monotonic() + self.server.limits.timeout)
        self.rfile = io.BufferedReader(deadline)
        self.is_body_read = False

    def handle(self) -> None:
        """Answer one request; clients that disconnect are ignored."""
        try:
            self.handle_one_request()
            if not self.is_body_read:
                self._linger()
        except OSError:  # of the connection; all other errors are answered
            pass

    def do_GET(self) -> None:
        """Answer GET, HEAD and POST requests."""
        self._answer()

    do_HEAD = do_POST = do_GET  # noqa: N815 (names of http.server)

    def _answer(self) -> None:
        self.is_body_read = not {"Content-Length", "Transfer-Encoding"} & {name.title() for name in self.headers}
        try:
            path = self._check()
            if path == "/":
                self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8", PAGE_POLICY)
            elif path == "/health":
                self._send_json(HTTPStatus.OK, {"status": "ok", **self.server.facts, "busy": self.server.n_busy})
            else:
                self._send_json(HTTPStatus.OK, self._predict())
        except Refusal as refusal:
            self._send_json(refusal.status, {"error": str(refusal)}, refusal.headers)
        except TimeoutError:
            self._send_json(HTTPStatus.REQUEST_TIMEOUT, {"error": "The request took too long to arrive."})
        except ConnectionError:
            raise
        except Exception as error:
            if os.environ.get("CAPTUNE_DEBUG"):
                traceback.print_exc()
            self.server.say(f"unexpected error: {type(error).__name__}: {error}")
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "Something went wrong inside the service."})

    def _check(self) -> str:
        """Return the path, or refuse a wrong path, method, host or origin."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            raise Refusal(HTTPStatus.BAD_REQUEST, "Expected exactly one Host header.")
        if not self.server.is_known_host(hosts[0]):
            raise Refusal(HTTPStatus.FORBIDDEN, "This service only accepts requests for the local host.")
        origin = self.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != hosts[0]:
            raise Refusal(HTTPStatus.FORBIDDEN, "Requests from other sites are not allowed.")
        path = self.path.partition("?")[0]
        if path not in PATHS:
            raise Refusal(HTTPStatus.NOT_FOUND, f"Not found. Available: {', '.join(PATHS)}.")
        if self.command not in PATHS[path]:
            allowed = ", ".join(PATHS[path])
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} only allows {allowed}.", Allow=allowed)
        return path

    def _predict(self) -> dict[str, Any]:
        k = self._top_k()
        length = announced_length(self.headers, self.server.limits.max_bytes)
        if not self.server.slots.acquire(blocking=False):
            raise busy()
        try:
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.send_response_only(HTTPStatus.CONTINUE)
                self.end_headers()
            body = read_body(self.rfile, length)
            self.is_body_read = True
            started = time.monotonic()
            try:
                row = self.server.predictor.classify(image_content(self.headers, body), self.server.limits.timeout)
            except UnreadableImageError as error:
                raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"The image cannot be used: {error}.") from None
        finally:
            self.server.slots.release()
        names = self.server.predictor.names
        best = [{"label": names[c], "probability": round(float(row[c]), 6)} for c in top_k(row[None], k)[0]]
        return {"predictions": best, "seconds": round(time.monotonic() - started, 4)}

    def _top_k(self) -> int:
        try:
            query = parse_qs(urlsplit(self.path).query, keep_blank_values=True, strict_parsing=False, max_num_fields=8)
        except ValueError:
            raise Refusal(HTTPStatus.BAD_REQUEST, "The query is invalid.") from None
        given = query.pop("top_k", [str(DEFAULT_TOP_K)])
        if query:
            raise Refusal(HTTPStatus.BAD_REQUEST, "The only query parameter is top_k, as in /predict?top_k=3.")
        text = given[0]
        if len(given) != 1 or not (text.isascii() and text.isdigit()) or len(text) > 6 or int(text) < 1:
            raise Refusal(HTTPStatus.BAD_REQUEST, "top_k must be an integer of at least 1.")
        return int(text)

    def _send_json(self, status: HTTPStatus, content: dict[str, Any], more: dict[str, str] | None = None) -> None:
        data = json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        self._send(status, data, "application/json; charset=utf-8", JSON_POLICY, more)

    def _send(
        self, status: HTTPStatus, data: bytes, kind: str, policy: str, more: dict[str, str] | None = None
    ) -> None:
        self.connection.settimeout(self.server.limits.timeout)  # for the whole response
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(data)), "Connection": "close"}
        for name, value in {**headers, **HEADERS, "Content-Security-Policy": policy, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _linger(self) -> None:
        """Read what a refused client still sends, because closing at once could discard the response."""
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_WR)
        until = time.monotonic() + LINGER_SECONDS
        while (left := until - time.monotonic()) > 0:
            self.connection.settimeout(left)
            if not self.connection.recv(65536):
                break

    def handle_expect_100(self) -> bool:
        """Send 100 Continue only after the request was checked."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer invalid requests with JSON that does not repeat them."""
        self.command = self.command or ""
        self._send_json(HTTPStatus(code), {"error": f"{HTTPStatus(code).phrase}."})

    def version_string(self) -> str:
        """Return the Server header, without the version of Python."""
        return f"captune/{__version__}"

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""
