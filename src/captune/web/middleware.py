"""What every request passes: limits on its body, Origin and token, safe headers, the log and the metrics."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captune import __version__

if TYPE_CHECKING:
    from captune.web.server import Service

COOKIE = "captune_token"
SECONDS_TO_DISCARD = 1.0
OPEN_PATH = "/health"
"""Needs no token, so that a container's health check does not have to know it."""
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


def problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Json:
    """Return a response that says what is wrong."""
    return Json({"error": sentence}, status, headers)


class Metrics:
    """Counts of requests, for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        labels = ("route", "status")
        self.requests = Counter("captune_requests", "Requests by route and status.", labels, registry=self.registry)
        self.seconds = Histogram("captune_request_seconds", "Time per request.", ("route",), registry=self.registry)


def with_middleware(app: ASGIApp, service: Service, metrics: Metrics) -> ASGIApp:
    """Return an application behind the checks of a service."""

    async def checked_app(scope: Scope, receive: Receive, send: Send) -> None:
        await (_refuse(scope, service) or app)(scope, receive, send)

    checked: ASGIApp = checked_app
    if service.origins:
        headers, methods = ("Authorization", "Content-Type"), ("GET", "POST")
        checked = CORSMiddleware(checked, service.origins, allow_methods=methods, allow_headers=headers)
    if service.hosts is not None:  # otherwise a page of another site could reach loopback under a name of its own
        checked = TrustedHostMiddleware(checked, service.hosts, www_redirect=False)
    return _Bounded(checked, service, metrics)


class _Bounded:
    """Bounds the size of a body and the time until it has arrived, adds headers, counts and logs."""

    def __init__(self, app: ASGIApp, service: Service, metrics: Metrics) -> None:
        self.app, self.service, self.metrics = app, service, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers, started, status = Headers(scope=scope), time.monotonic(), 0
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        is_discarded = "expect" in headers  # such a client sends no body before it is told to

        async def timed_receive() -> Message:
            nonlocal has_body
            if not has_body:
                return await receive()
            left = max(0.01, started + self.service.limits.timeout - time.monotonic())
            try:
                message = await asyncio.wait_for(receive(), left)
            except asyncio.TimeoutError:
                sentence = "The request took too long to arrive."
                raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, sentence, {"Connection": "close"}) from None
            has_body = message.get("more_body", False)
            return message

        async def discard() -> None:
            while has_body:
                await timed_receive()

        async def checked_send(message: Message) -> None:
            nonlocal status, is_discarded
            if message["type"] == "http.response.start":
                status = message["status"]
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found.setdefault(name, value)
                if status >= HTTPStatus.BAD_REQUEST and not is_discarded:  # or closing could discard the response
                    is_discarded = True
                    with suppress(asyncio.TimeoutError, HTTPException):
                        await asyncio.wait_for(discard(), SECONDS_TO_DISCARD)
            await send(message)

        try:
            await (self._refuse_length(scope, headers) or self.app)(scope, timed_receive, checked_send)
        except Exception as error:
            if os.environ.get("CAPTUNE_DEBUG"):
                traceback.print_exception(error)
            self.service.say(f"unexpected error: {type(error).__name__}: {error}")
        finally:
            self._record(scope, status, time.monotonic() - started)

    def _refuse_length(self, scope: Scope, headers: Headers) -> Response | None:
        if scope["method"] in ("GET", "HEAD", "OPTIONS", "DELETE"):
            return None
        if "transfer-encoding" in headers or "content-length" not in headers:
            return problem(
                HTTPStatus.LENGTH_REQUIRED, "Send the body with a Content-Length, without Transfer-Encoding."
            )
        length, most = int(headers["content-length"]), self.service.limits.most_bytes(scope["path"])
        sentence = f"The request has {length:,} bytes, the limit is {most:,}."
        return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence) if length > most else None

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        client, path = (scope.get("client") or ("-",))[0], scope.get("raw_path", b"").decode("ascii", "replace")[:200]
        when = time.strftime("%Y-%m-%d %H:%M:%S")  # without the query, which may have a token
        self.service.log(f"{when} {client} {scope['method']} {path} {status} {seconds:.3f} s")


def _refuse(scope: Scope, service: Service) -> Response | None:
    """Refuse pages of other sites and clients without the token; a token in the address becomes a cookie."""
    headers, token = Headers(scope=scope), service.token
    origin = headers.get("origin")
    if origin not in (None, *service.origins) and origin.partition("://")[2] != headers.get("host"):  # type: ignore[union-attr]
        return problem(HTTPStatus.FORBIDDEN, "Requests from other sites are not allowed.")
    given = headers.get("authorization", "").removeprefix("Bearer ")
    cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
    if not token or scope["path"] == OPEN_PATH or _is_same(given, token) or _is_same(cookie, token):
        return None
    query = parse_qs(scope["query_string"].decode("latin-1"))
    if scope["method"] == "GET" and _is_same(query.pop("token", [""])[0], token):
        rest = urlencode(query, doseq=True)
        place = "/" + scope["path"].lstrip("/\\")  # two slashes would lead to another host
        response = RedirectResponse(place + (f"?{rest}" if rest else ""), HTTPStatus.SEE_OTHER)
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return response
    sentence = "This service needs its token: open /?token=TOKEN, or send the header Authorization: Bearer TOKEN."
    return problem(HTTPStatus.UNAUTHORIZED, sentence, {"WWW-Authenticate": "Bearer"})


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("utf-8"))
