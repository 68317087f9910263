"""A real local HTTP server that speaks the chat-completions protocol, with every fault on demand."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass(frozen=True)
class Answer:
    """What the server does with a question: a reply, a status, a wait, or a dropped connection."""

    text: str | None = "a plain sentence"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    refusal: str | None = None
    finish: str = "stop"
    wait: float = 0.0
    is_dropped: bool = False
    pause_per_byte: float = 0.0
    raw: bytes | None = None

    def body(self) -> bytes:
        if self.raw is not None:
            return self.raw
        if self.status != 200:
            return json.dumps({"error": self.error or {"message": f"status {self.status}"}}).encode()
        message = {"role": "assistant", "content": self.text, "refusal": self.refusal}
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        return json.dumps(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        ).encode()


class ChatServer:
    """Counts the questions and their peak of parallelism, and answers by a function of the question's number."""

    def __init__(self, answer: Callable[[int, str], Answer], port: int = 0) -> None:
        self.answer = answer
        self.questions: list[str] = []
        self.keys: set[str] = set()
        self.models: set[str] = set()
        self.at_once = self.peak = 0
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                question = asked["messages"][-1]["content"]
                with server.lock:
                    number = len(server.questions)
                    server.questions.append(question)
                    server.keys.add(self.headers.get("Authorization", ""))
                    server.models.add(asked["model"])
                    server.at_once += 1
                    server.peak = max(server.peak, server.at_once)
                reply = server.answer(number, question)
                time.sleep(reply.wait)
                with server.lock:
                    server.at_once -= 1
                if reply.is_dropped:
                    self.close_connection = True
                    self.connection.close()
                    return
                body = reply.body()
                self.send_response(reply.status)
                for name, value in {"content-type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if not reply.pause_per_byte:
                    self.wfile.write(body)
                    return
                for byte in body:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(reply.pause_per_byte)

            def log_message(self, *args: object) -> None:
                pass

        self.http = QuietServer(("127.0.0.1", port), Handler)

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.questions)


class QuietServer(ThreadingHTTPServer):
    """Broken connections are part of the tests, not news; many clients may knock at once."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def serving(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[int, str], Answer], key: str, port: int = 0
) -> Iterator[ChatServer]:
    """Run a server and point the openai package at it."""
    server = ChatServer(answer, port)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.http.server_address[1]}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", key)
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()
