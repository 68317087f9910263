"""A real service on a free port, with a classifier that can be told to wait."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from PIL import Image

from captune.data.views import Preprocessing
from captune.web.prediction import predicting
from captune.web.server import Limits, Service, running

NAMES = ("red", "green", "blue", "<script>alert('x')</script>")


class Colors:
    """Gives every image the class of its strongest channel; waits while `gate` is closed."""

    names = NAMES
    preprocessing = Preprocessing(16, 16, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []
        self.threads: set[int] = set()

    def score_views(self, views: Any) -> Any:
        self.gate.wait(20)
        self.batches.append(len(views))
        self.threads.add(threading.get_ident())
        rows = views.reshape(len(views), -1, 3).mean(axis=1)
        if any(row.max() == 0 for row in rows):
            raise RuntimeError("secret words about black images")
        if any(row.min() == 255 for row in rows):
            return np.full((len(rows), len(NAMES)), np.nan, dtype=np.float32)
        return np.asarray([[*(row / row.sum() * 0.9), 0.1] for row in rows], dtype=np.float32)


class Client:
    """Asks a service, and tells the status, the headers and the JSON of what comes back."""

    def __init__(self, service: Service, classifier: Colors) -> None:
        self.service, self.classifier = service, classifier
        self.port = service.port
        self.said: list[str] = []
        self.logged: list[str] = []
        self.images: Any = None

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
    """Return one response, or what came before the connection was closed."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
            head, _, body = found.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            if length and len(body) >= int(length[1]):
                break
    except ConnectionError:
        pass
    return found


def wait_until(condition: object, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.01)


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
def serving(host: str = "127.0.0.1", token: str = "", origins: Sequence[str] = (), **limits: Any) -> Iterator[Client]:
    classifier, said, logged = Colors(), [], []
    with (
        Service(host, 0, Limits(**limits), token, said.append, logged.append, origins) as service,
        predicting(classifier, "colors & <b>", service.limits) as app,
        running(service, app),
    ):
        client = Client(service, classifier)
        client.said, client.logged, client.images = said, logged, app.state.images
        try:
            client.ask(
                "/predict", picture(), Authorization=f"Bearer {token}"
            )  # starts the decoding process, which takes longer than some limits
            classifier.batches.clear()
            yield client
        finally:
            classifier.gate.set()
