"""captune serve: an HTTP service for the predictions of a run."""

from __future__ import annotations

import argparse
from typing import Any

from captune.web.limits import Limits


def add(commands: Any) -> None:  # noqa: ANN401 (argparse keeps this class private)
    """Declare the command."""
    words = commands.add_parser(
        "serve", help="classify images over HTTP, with a page to drop them on", allow_abbrev=False
    )
    words.add_argument("run", metavar="RUN", help="run folder, or an ONNX export (model.onnx)")
    words.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    words.add_argument("--port", type=int, default=8000, help="port to listen on; 0 takes a free one")
    words.add_argument("--max-bytes", type=int, default=Limits.max_bytes, metavar="N", help="largest request")
    words.add_argument("--concurrency", type=int, default=Limits.concurrency, metavar="N", help="images at once")
    words.add_argument(
        "--timeout", type=float, default=Limits.timeout, metavar="SECONDS", help="for a request, and for its answer"
    )


def run(options: argparse.Namespace) -> None:
    """Serve until it is interrupted."""
    limits = Limits(options.max_bytes, options.concurrency, options.timeout)
    from captune.web.server import serve

    serve(options.run, options.host, options.port, limits)
