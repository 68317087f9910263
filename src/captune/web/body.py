"""Reading request bodies, with a deadline and a limit on their size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from captune.web.limits import Refusal

MOST_PARTS = 16
MOST_JSON = 5_000_000


def announced_length(headers: Headers, most: int) -> int:
    """Return the length of the body, or refuse the request if it is missing, invalid or too large."""
    if "transfer-encoding" in headers or "content-length" not in headers:
        raise Refusal(HTTPStatus.LENGTH_REQUIRED, "Send the body with a Content-Length, without Transfer-Encoding.")
    length = int(headers["content-length"])  # checked by the parser of HTTP
    if length > most:
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The request has {length:,} bytes, the limit is {most:,}.")
    if length == 0:
        raise Refusal(HTTPStatus.BAD_REQUEST, "The request is empty: send an image as its body.")
    return length


async def read_body(request: Request, length: int, seconds: float) -> bytes:
    """Return the whole body, or refuse the request if it ends early or takes too long."""
    content = bytearray()

    async def read() -> None:
        async for part in request.stream():
            content.extend(part)

    try:
        await asyncio.wait_for(read(), seconds)
    except asyncio.TimeoutError:
        raise Refusal(HTTPStatus.REQUEST_TIMEOUT, "The request took too long to arrive.", Connection="close") from None
    except ClientDisconnect:
        pass
    if len(content) < length:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"The request ended after {len(content):,} of {length:,} bytes.")
    return bytes(content)


async def read_json(request: Request, seconds: float) -> dict[str, Any]:
    """Return the JSON object that a page sent."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send JSON with Content-Type: application/json.")
    content = await read_body(request, announced_length(request.headers, MOST_JSON), seconds)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refusal(HTTPStatus.BAD_REQUEST, "The body is not a JSON object.")
    return found


async def image_content(headers: Headers, body: bytes) -> bytes:
    """Return the image: the body itself, or the first file of a multipart form."""
    kind, options = parse_options_header(headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        return body
    boundary = options.get(b"boundary", b"")
    if not boundary or not boundary.isascii() or len(boundary) > 70:
        raise Refusal(HTTPStatus.BAD_REQUEST, "The form has no valid boundary.")
    parser = MultiPartParser(headers, _once(body), max_files=MOST_PARTS, max_fields=MOST_PARTS)
    parser.spool_max_size = len(body) + 1  # never a temporary file
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"The form cannot be read: {error.message}") from None
    for _, value in form.multi_items():
        if isinstance(value, UploadFile):
            return await value.read()
    raise Refusal(HTTPStatus.BAD_REQUEST, "The form contains no file: send the image as a file field.")


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body
