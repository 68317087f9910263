"""What every request passes: Host, Origin and token, safe headers, the log, the metrics, and no traceback."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captune import __version__
from captune.web.limits import Refusal

COOKIE = "captune_token"
LINGER_SECONDS = 1.0
OPEN_PATHS = ("/health",)
"""Need no token, so that a container's health check does not have to know it."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, the Origin of our own form would be "null"
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Server": f"captune/{__version__}",
}


class Json(Response):
    """A JSON response; names may contain anything, numbers are finite."""

    media_type = "application/json; charset=utf-8"

    def render(self, content: Any) -> bytes:  # noqa: ANN401 (anything that JSON can hold)
        """Return the content as bytes."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", "backslashreplace") + b"\n"


class Metrics:
    """Counts of requests, for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        labels = ("route", "status")
        self.requests = Counter("captune_requests", "Requests by route and status.", labels, registry=self.registry)
        self.seconds = Histogram("captune_request_seconds", "Time per request.", ("route",), registry=self.registry)

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)


@dataclass
class Guard:
    """Wraps an application.

    Attributes:
        app: The application.
        hosts: Names that a Host header may have; None allows all.
        token: Word that clients must know; empty on loopback.
        timeout: Seconds that a client may take to accept each part of a response.
        log: Called with one line per request.
        complain: Called with one line per unexpected error.
    """

    app: ASGIApp
    hosts: tuple[str, ...] | None
    token: str
    timeout: float
    log: Callable[[str], None]
    complain: Callable[[str], None]
    metrics: Metrics = field(default_factory=Metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        started, status, is_body_read = time.monotonic(), 0, not _has_body(scope)

        async def guarded_receive() -> Message:
            nonlocal is_body_read
            message = await receive()
            is_body_read = is_body_read or not message.get("more_body", False)
            return message

        async def guarded_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            elif not is_body_read and not message.get("more_body", False):
                await self._send({**message, "more_body": True}, send)
                await _linger(guarded_receive, lambda: is_body_read)
                message = {**message, "body": b""}
            await self._send(message, send)

        try:
            response = self._check(scope)
            if response is not None:
                await response(scope, guarded_receive, guarded_send)
            else:
                await self.app(scope, guarded_receive, guarded_send)
        except ConnectionError:  # the client does not read
            pass
        except Exception as error:
            if not isinstance(error, Refusal):
                self._complain(error)
            if not status:
                await explain(error)(scope, guarded_receive, guarded_send)
        finally:
            seconds = time.monotonic() - started
            self.metrics.count(getattr(scope.get("route"), "path", "other"), status, seconds)
            client = (scope.get("client") or ("-",))[0]
            path = scope.get("raw_path", b"").decode("ascii", "replace")[:200]
            self.log(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {client} {scope['method']} {path} {status} {seconds:.3f} s")

    async def _send(self, message: Message, send: Send) -> None:
        """Send a part of a response, with a deadline; unlike `wait_for`, this needs no task of its own."""
        task, is_late = asyncio.current_task(), False

        def end() -> None:
            nonlocal is_late
            is_late = True
            if task is not None:
                task.cancel()

        timer = asyncio.get_running_loop().call_later(self.timeout, end)
        try:
            await send(message)
        except asyncio.CancelledError:
            if not is_late:
                raise
            raise ConnectionAbortedError("the client does not read") from None
        finally:
            timer.cancel()

    def _check(self, scope: Scope) -> Response | None:
        """Refuse a wrong host, origin or token; a token in the address becomes a cookie."""
        if scope["http_version"] not in ("1.0", "1.1"):
            raise Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Expected HTTP/1.1.")
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            raise Refusal(HTTPStatus.BAD_REQUEST, "Expected exactly one Host header.")
        if not self._is_known_host(hosts[0]):
            raise Refusal(HTTPStatus.FORBIDDEN, "This service only accepts requests for the local host.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != hosts[0]:
            raise Refusal(HTTPStatus.FORBIDDEN, "Requests from other sites are not allowed.")
        return None if scope["path"] in OPEN_PATHS or not self.token else self._check_token(scope, headers)

    def _is_known_host(self, header: str) -> bool:
        """Return whether a Host header names this machine, which protects against DNS rebinding."""
        try:
            return self.hosts is None or urlsplit(f"//{header}").hostname in self.hosts
        except ValueError:
            return False

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(given) or self._is_token(cookie_parser(headers.get("cookie", "")).get(COOKIE, "")):
            return None
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if scope["method"] == "GET" and self._is_token(query.pop("token", [""])[0]):
            rest = urlencode(query, doseq=True)
            response = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), HTTPStatus.SEE_OTHER)
            response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return response
        raise Refusal(
            HTTPStatus.UNAUTHORIZED,
            "This service needs its token: open /?token=TOKEN, or send the header Authorization: Bearer TOKEN.",
            WWW_Authenticate="Bearer",
        )

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode("utf-8"))

    def _complain(self, error: Exception) -> None:
        """Report an unexpected error, in one line unless the traceback is asked for."""
        if os.environ.get("CAPTUNE_DEBUG"):
            traceback.print_exception(error)
        self.complain(f"unexpected error: {type(error).__name__}: {error}")


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


async def _linger(receive: Receive, is_read: Callable[[], bool]) -> None:
    """Read what a refused client still sends, because closing at once could discard the response."""

    async def read() -> None:
        while not is_read():
            await receive()

    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(read(), LINGER_SECONDS)


def explain(error: Exception) -> Response:
    """Return the response to an error; the details of unexpected ones stay in the service."""
    if isinstance(error, Refusal):
        return Json({"error": str(error)}, error.status, error.headers)
    if isinstance(error, HTTPException):
        return Json({"error": f"{HTTPStatus(error.status_code).phrase}."}, error.status_code, error.headers)
    return Json({"error": "Something went wrong inside the service."}, HTTPStatus.INTERNAL_SERVER_ERROR)
