"""captune serve: classify images over HTTP or on a web page."""

from __future__ import annotations

import argparse

from captune.web.server import Limits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder, or an ONNX export (model.onnx)")
    add_address_options(parser, 8000)
    parser.add_argument(
        "--max-bytes", type=int, default=Limits.max_bytes, metavar="N", help="maximum size of a request"
    )
    parser.add_argument(
        "--concurrency", type=int, default=Limits.concurrency, metavar="N", help="maximum number of images at once"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=Limits.timeout,
        metavar="SECONDS",
        help="time limit for a request and for its response",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="SITE",
        help="site whose pages may send requests, such as https://example.org (CORS); repeat for several",
    )
    parser.add_argument("--quiet", action="store_true", help="do not log requests")


def add_address_options(parser: argparse.ArgumentParser, port: int) -> None:
    """Declare where a page is served, and for whom."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=port, help="port to listen on; 0 picks a free one")
    parser.add_argument(
        "--token", default="", metavar="WORD", help="word that clients must send; required if others can connect"
    )


def run(options: argparse.Namespace) -> None:
    """Serve until interrupted."""
    limits = Limits(options.max_bytes, options.concurrency, options.timeout)
    from captune.web.server import check_installed, nothing, say

    check_installed()
    from captune.web.prediction import serve

    log = nothing if options.quiet else say
    serve(options.run, options.host, options.port, limits, options.token, log, options.allow_origin)
