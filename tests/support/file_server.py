"""A local web server with files in memory that supports ranges and can cut connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """The files of the server and the headers of its requests."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: int | None = None
    """Number of bytes after which the next response is cut."""
    knows_ranges: bool = True
    asked: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def serve() -> Iterator[FileServer]:
    """Run a server on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(dict(self.headers))
            content = server.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start, wanted = 0, self.headers.get("Range", "")
            if server.knows_ranges and wanted:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.end_headers()
                    return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = len(content) if server.cut_after is None else server.cut_after
            server.cut_after = None
            self.wfile.write(content[start:end])

        def log_message(self, *words: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = FileServer(f"http://127.0.0.1:{listener.server_port}")
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
