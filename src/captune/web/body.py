"""Reading requests, with a deadline and a limit on their size."""

from __future__ import annotations

import io
import socket
import time
from email.message import Message
from email.parser import BytesHeaderParser
from http import HTTPStatus

from captune.web.limits import Refusal

MOST_PARTS = 16
LONGEST_PART_HEADER = 8192


class DeadlineReader(io.RawIOBase):
    """Reads a socket until a fixed time of the monotonic clock, however slowly bytes arrive."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.connection, self.until = connection, until

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer with the bytes that have arrived."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long to arrive")
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


def announced_length(headers: Message, most: int) -> int:
    """Return the length of the body, or refuse the request if it is missing, invalid or too large."""
    if headers.get("Transfer-Encoding") is not None:
        raise Refusal(
            HTTPStatus.LENGTH_REQUIRED, "Send the image with a Content-Length; Transfer-Encoding is not supported."
        )
    found = set(headers.get_all("Content-Length", []))
    if not found:
        raise Refusal(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing: send the image as the request's body.")
    text = found.pop().strip()
    if found or not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise Refusal(HTTPStatus.BAD_REQUEST, "Content-Length is not a single number.")
    length = int(text)
    if length > most:
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The request has {length:,} bytes, the limit is {most:,}.")
    if length == 0:
        raise Refusal(HTTPStatus.BAD_REQUEST, "The request is empty: send an image as its body.")
    return length


def read_body(reader: io.BufferedIOBase, length: int) -> bytes:
    """Return the whole body, or refuse the request if it ends early."""
    content = reader.read(length)
    if len(content) < length:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"The request ended after {len(content):,} of {length:,} bytes.")
    return content


def image_content(headers: Message, body: bytes) -> bytes:
    """Return the image: the body itself, or the first file of a multipart form."""
    if headers.get_content_type() != "multipart/form-data":
        return body
    boundary = headers.get_boundary()
    if not boundary or not boundary.isascii() or len(boundary) > 70:
        raise Refusal(HTTPStatus.BAD_REQUEST, "The form has no valid boundary.")
    return _first_file(b"\r\n" + body, f"\r\n--{boundary}".encode("ascii"))


def _first_file(body: bytes, delimiter: bytes) -> bytes:
    start = body.find(delimiter)
    for _ in range(MOST_PARTS):
        if start < 0:
            break
        start += len(delimiter)
        end = body.find(delimiter, start)
        middle = body.find(b"\r\n\r\n", start, start + LONGEST_PART_HEADER)
        if end < 0 or middle < 0 or middle > end:
            break
        if BytesHeaderParser().parsebytes(body[start:middle].lstrip()).get_filename() is not None:
            return body[middle + 4 : end]
        start = end
    raise Refusal(HTTPStatus.BAD_REQUEST, "The form contains no file: send the image as a file field.")
