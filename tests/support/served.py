"""A real service on a free port, with a classifier that can be told to wait."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from PIL import Image

from captune.web.limits import Limits
from captune.web.server import Service, running

NAMES = ("red", "green", "blue", "<script>alert('x')</script>")


class Colors:
    """Gives every image the class of its strongest channel; waits while `gate` is closed."""

    names = NAMES

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []
        self.threads: set[int] = set()

    def predict_proba(self, images: Sequence[Any]) -> Any:
        self.gate.wait(20)
        self.batches.append(len(images))
        self.threads.add(threading.get_ident())
        rows = [np.asarray(image, dtype=np.float64).reshape(-1, 3).mean(axis=0) for image in images]
        if any(row.max() == 0 for row in rows):
            raise RuntimeError("secret words about black images")
        return np.asarray([[*(row / row.sum() * 0.9), 0.1] for row in rows], dtype=np.float32)


class Client:
    """Asks a service, and tells the status, the headers and the JSON of what comes back."""

    def __init__(self, service: Service, classifier: Colors) -> None:
        self.service, self.classifier = service, classifier
        self.port = int(service.server_address[1])
        self.said: list[str] = []

    def ask(
        self, path: str, body: bytes | None = None, method: str | None = None, **headers: str
    ) -> tuple[int, Any, Any]:
        words = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(f"http://127.0.0.1:{self.port}{path}", data=body, headers=words, method=method)
        try:
            with urlopen(request, timeout=20) as answer:
                return answer.status, answer.headers, parse(answer.read())
        except HTTPError as error:
            with error:
                return error.code, error.headers, parse(error.read())

    def raw(self, content: bytes, timeout: float = 10) -> bytes:
        """Send bytes as they are and return everything that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(content)
            return everything(connection)


def everything(connection: socket.socket) -> bytes:
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode("utf-8")


def picture(color: tuple[int, int, int] = (200, 10, 10), kind: str = "PNG", side: int = 16) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (side, side), color).save(target, kind)
    return target.getvalue()


@contextmanager
def serving(host: str = "127.0.0.1", **limits: Any) -> Iterator[Client]:
    classifier, said = Colors(), []
    with Service(host, 0, Limits(**limits), said.append) as service, running(service, classifier, "colors & <b>"):
        client = Client(service, classifier)
        client.said = said
        try:
            yield client
        finally:
            classifier.gate.set()
